"""Ask all targets of a fleet, keep what they answer, and read it again for the page. Each node of a Ray cluster is one
target's alone from its first build to its last race."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.files import LOCK, sha256_of
from enginewright.core.installing import revision
from enginewright.core.params.all import Params
from enginewright.core.params.build import ClusterParams
from enginewright.core.params.section import PARAMS_FILE
from enginewright.targets import node
from enginewright.targets.answer import NOT_YET, Answer, Answers, UsersCode
from enginewright.targets.file import FLEET, Fleet, Here, OnNode, OnRunner, Target
from enginewright.targets.here import SHARED, answer_here, dvc, versions
from enginewright.targets.ray_cluster import RayCluster, connected


def ask_fleet(fleet: Fleet, params: Params, users_code: UsersCode) -> list[str]:
    """Ask this machine first, with nothing beside it, and then all nodes at once. Runners answer by themselves. Return
    the names of the targets that failed. Those that cannot be asked are told before."""
    for target in fleet.targets:
        if isinstance(target, OnRunner):
            _say(f"{target.name} is not asked from here: {_how_to_ask(target)}, and ask again for the page")
    failures = []
    try:
        for answer in _asked(fleet, params):
            if answer.failed:
                _say(f"{answer.target} failed: {answer.failed}")
                failures.append(answer)
            else:  # it is written at once: this process may be killed
                _say(f"{answer.target} answered, on {answer.node}")
                Answers.about(params, users_code).keep(answer)
    finally:  # at last, since the run may have made other samples than there were when the first one failed
        for failure in failures:
            Answers.about(params, users_code).keep(failure)
    return [failure.target for failure in failures]


def answer_as(target: OnRunner, params: Params, users_code: UsersCode) -> bool:
    """Answer for a runner, which is this machine. Tell whether it could."""
    answer = _try_here(target, revision(), params)
    Answers.about(params, users_code).keep(answer)
    return not answer.failed


def known_answers(fleet: Fleet) -> dict[str, list[Answer]]:
    """Return the answers that there are by model, in the order of the fleet. A target without one has a row, too."""
    found = {}
    for kept in Answers.of_all_models():
        there = {target.name: kept.of(target.name) for target in fleet.targets}
        if model := next((answer.model for answer in there.values() if answer), None):
            found[f"{model} ({kept.folder.name[-8:]})"] = [
                there[one.name] or Answer(target=one.name, model=model, failed=f"{NOT_YET}: {_how_to_ask(one)}")
                for one in fleet.targets
            ]
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _how_to_ask(target: Target) -> str:
    if isinstance(target, OnRunner):
        return f"the nightly job on the runner {target.label} commits its answer; then `git pull`"
    return f"`enginewright fleet --target {target.name}` asks it"


def _asked(fleet: Fleet, params: Params) -> Iterator[Answer]:
    """Yield the answers, and without figures those of targets that failed."""
    commit, model = revision(), params.model.source
    on_nodes = [target for target in fleet.targets if isinstance(target, OnNode)]
    why_not = refused(on_nodes, fleet.cluster, commit) if on_nodes and fleet.cluster else {}
    for name, why in why_not.items():
        yield Answer(target=name, model=model, failed=why)
    for target in fleet.targets:
        if isinstance(target, Here):
            yield _try_here(target, commit, params)
    on_nodes = [target for target in on_nodes if target.name not in why_not]
    if on_nodes and fleet.cluster:
        for target, answer in ask_nodes(on_nodes, fleet.cluster, commit):
            yield Answer(target=target.name, model=model, failed=answer) if isinstance(answer, str) else answer


def _try_here(target: Target, commit: str, params: Params) -> Answer:
    try:
        return answer_here(target.name, commit, params)
    except Exception as error:
        if sentence := sentence_of(error):
            return Answer(target=target.name, model=params.model.source, failed=sentence)
        raise


# Nodes of a Ray cluster.


def refused(targets: Sequence[OnNode], address: str, commit: str) -> dict[str, str]:
    """Say of which targets it is clear, before minutes of work, that they cannot be asked, and why."""
    if commit.endswith("-dirty"):
        why = "nodes get the last commit, and files differ from it: commit them first (`git status`)"
        return {target.name: why for target in targets}
    found = {}
    try:
        with connected(ClusterParams(address=address)):
            for target in targets:
                try:
                    _node_for(target, address)
                except EnginewrightError as error:
                    found[target.name] = str(error)
    except EnginewrightError as error:
        return {target.name: _of_cluster(error) for target in targets}
    return found


def ask_nodes(targets: Sequence[OnNode], address: str, commit: str) -> Iterator[tuple[OnNode, Answer | str]]:
    """Yield what each target answers, or why it does not. What hinders all, such as no remote, is every one's."""
    try:
        sent = _packed(commit)
        with connected(ClusterParams(address=address)):
            yield from _answers(targets, address, sent)
    except EnginewrightError as error:
        yield from ((target, _of_cluster(error)) for target in targets)


def _of_cluster(error: EnginewrightError) -> str:
    return str(error).replace("cluster.address", f"the cluster in {FLEET}")


def _answers(targets: Sequence[OnNode], address: str, sent: node.Sent) -> Iterator[tuple[OnNode, Answer | str]]:
    import ray

    ray.cloudpickle.register_pickle_by_value(node)
    task, waiting = ray.remote(node.run_on_node), {}
    for target in targets:
        try:
            where = _node_for(target, address)
        except EnginewrightError as error:
            yield target, str(error)
            continue
        held, address_of_node = where["Resources"], where["NodeManagerAddress"]
        _say(f"{target.name} takes the whole node {address_of_node}, {held['CPU']:g} cores, as soon as it is free")
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(where["NodeID"], soft=False)
        whole = task.options(
            num_cpus=held["CPU"], num_gpus=held.get("GPU", 0), scheduling_strategy=strategy, max_retries=0
        )
        its_own = sent._replace(name=f"{sent.name}/{target.name}", arguments=(target.name, *sent.arguments))
        waiting[whole.remote(its_own)] = target
    try:
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            yield waiting.pop(done), _answer(done)
    finally:
        for left in waiting:
            ray.cancel(left, force=True)


def _node_for(target: OnNode, address: str) -> dict[str, Any]:
    """Return the first node with the resource, by address: so it is the same one each time."""
    import ray

    cluster = RayCluster(ray, ClusterParams(address=address, resource=target.resource))
    cluster.require_nodes()
    return min(cluster.nodes(), key=lambda one: (str(one["NodeManagerAddress"]), str(one["NodeID"])))


def _answer(reference: Any) -> Answer | str:
    import ray

    try:
        name, answer, failure = ray.get(reference)
        return failure or Answer.parse(answer.encode(), f"the answer of {name}")
    except EnginewrightError as error:  # it is this target's alone
        return str(error)
    except ray.exceptions.RayError as error:
        last = (str(error).strip().splitlines() or ["it gives no reason"])[-1]
        return f"the node was lost, or cannot do it: {type(error).__name__}: {last}"


def _packed(commit: str) -> node.Sent:
    """Make what serves any machine, push it to the remote, and return the commit that takes it from there."""
    if unknown := _git("ls-files", "--others", "--exclude-standard", str(Path("data").resolve())).decode().splitlines():
        raise EnginewrightError(
            f"nodes get the last commit, and {unknown[0]} is not in it: `git add` or `dvc add` it, and commit"
        )
    dvc("repro", *SHARED)
    dvc("push", "--with-deps", *SHARED)
    root = Path(_git("rev-parse", "--show-toplevel").decode().strip())
    within = _git("rev-parse", "--show-prefix").decode().strip()
    name = f"{root.name}-{sha256_of(str(Path.cwd()))[:8]}"
    locks = {str(lock): lock.read_bytes() for lock in (LOCK, "machine" / LOCK)}  # they may be newer than the commit
    files = {PARAMS_FILE.name: _without_cluster()} | locks
    return node.Sent(name, _git("-C", str(root), "archive", "HEAD"), within, files, (commit, json.dumps(versions())))


def _without_cluster() -> bytes:
    """Return params.yaml so that the stages of a target stay on its node."""
    yaml, written = YAML(), io.BytesIO()
    params = yaml.load(PARAMS_FILE.read_text(encoding="utf-8"))
    if params.get("cluster"):
        params["cluster"]["address"] = None
    yaml.dump(params, written)
    return written.getvalue()


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True)
    if done.returncode:
        raise EnginewrightError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
