"""Ask all targets of a fleet, keep what they answer, and read it again for the page. Each node of a Ray cluster is one
target's alone from its first build to its last race."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.files import ARTIFACTS, ENGINES, LOCK, REPORTS, new_folder, sha256_of
from enginewright.core.installing import revision
from enginewright.core.params.all import Params
from enginewright.core.params.build import ON_CPU, ONNXRUNTIME, ClusterParams
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.process import TARGET
from enginewright.targets import node
from enginewright.targets.answer import NOT_YET, Answer, Answers, UsersCode
from enginewright.targets.file import FLEET, Fleet, Target
from enginewright.targets.here import SHARED, answer_here, dvc, versions
from enginewright.targets.ray_cluster import RayCluster, connected
from enginewright.targets.ssh import describe, made_ready, reached

DIRTY = "targets get the last commit, and files differ from it: commit them first (`git status`)"


def ask_fleet(fleet: Fleet, params: Params, users_code: UsersCode) -> list[str]:
    """Ask this machine first, with nothing beside it, and then all others at once. Return the names of the targets that
    failed."""
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
    return f"`enginewright fleet --target {target.name}` asks it"


def _asked(fleet: Fleet, params: Params) -> Iterator[Answer]:
    """Yield the answers, and without figures those of targets that failed."""
    commit, model = revision(), params.model.source
    on_nodes, devices = ([target for target in fleet.targets if getattr(target, way)] for way in ("ray", "ssh"))
    why_not = refused(on_nodes, fleet.cluster, commit) if on_nodes and fleet.cluster else {}
    if commit.endswith("-dirty"):
        why_not |= dict.fromkeys((target.name for target in devices), DIRTY)
    for name, why in why_not.items():
        yield Answer(target=name, model=model, failed=why)
    for target in fleet.targets:
        if not target.ray and not target.ssh:
            yield _try_here(target, commit, params)
    on_nodes, devices = ([target for target in each if target.name not in why_not] for each in (on_nodes, devices))
    with ThreadPoolExecutor() as pool:
        try:
            sent = _packed(commit) if devices else None
            asked = [pool.submit(ask_device, target, params, sent) for target in devices if sent]
        except EnginewrightError as error:
            asked = []
            yield from (Answer(target=target.name, model=model, failed=str(error)) for target in devices)
        if on_nodes and fleet.cluster:
            for target, answer in ask_nodes(on_nodes, fleet.cluster, commit):
                yield Answer(target=target.name, model=model, failed=answer) if isinstance(answer, str) else answer
        for done in as_completed(asked):
            yield done.result()


def _try_here(target: Target, commit: str, params: Params) -> Answer:
    try:
        return answer_here(target.name, commit, params)
    except Exception as error:
        if sentence := sentence_of(error):
            return Answer(target=target.name, model=params.model.source, failed=sentence)
        raise


# Targets that ssh reaches.


def ask_device(target: Target, params: Params, sent: node.Sent) -> Answer:
    """Run the pipeline in a copy of the project here, whose stages of engines run on the target."""
    try:
        with reached(target) as (device, looked):
            _say(f"{target.name}: {looked.in_words}")
            device = made_ready(device, looked, sent.name)
            machine, of_onnxruntime = describe(device, params.runtime)
            baseline = ONNXRUNTIME if of_onnxruntime == machine.device else ON_CPU
            _say(f"{target.name}: {machine.in_words()}")
            its_own = sent._replace(
                name=f"{sent.name}/{target.name}",
                arguments=(target.name, *sent.arguments),
                files={**sent.files, PARAMS_FILE.name: _params_for_targets(baseline), **_same_cache()},
                environment={TARGET: device.model_dump_json()},
            )
            _, answer, failure = node.run_on_node(its_own)
        if failure:
            raise EnginewrightError(failure)
        for folder in (ENGINES, REPORTS):
            with new_folder(ARTIFACTS / "fleet" / target.name / folder.name) as unfinished:
                shutil.copytree(its_own.project / folder, unfinished, dirs_exist_ok=True)
        return Answer.parse(answer.encode(), f"the answer of {target.name}")
    except Exception as error:
        if sentence := sentence_of(error):
            return Answer(target=target.name, model=params.model.source, failed=sentence)
        raise


def _same_cache() -> dict[str, bytes]:
    """Return the setting by which a copy of the project has the cache of this one."""
    home = next(each for each in (Path.cwd(), *Path.cwd().parents) if (each / ".dvc").is_dir())
    cache = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True).stdout.strip()
    setting = f'[cache]\n    dir = {cache}\n    type = "reflink,hardlink,copy"\n'
    return {os.path.relpath(home / ".dvc" / "config.local"): setting.encode()}


# Nodes of a Ray cluster.


def refused(targets: Sequence[Target], address: str, commit: str) -> dict[str, str]:
    """Say of which targets it is clear, before minutes of work, that they cannot be asked, and why."""
    if commit.endswith("-dirty"):
        return {target.name: DIRTY for target in targets}
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


def ask_nodes(targets: Sequence[Target], address: str, commit: str) -> Iterator[tuple[Target, Answer | str]]:
    """Yield what each target answers, or why it does not. What hinders all, such as no remote, is every one's."""
    try:
        sent = _packed(commit)
        dvc("push", "--with-deps", *SHARED)
        with connected(ClusterParams(address=address)):
            yield from _answers(targets, address, sent)
    except EnginewrightError as error:
        yield from ((target, _of_cluster(error)) for target in targets)


def _of_cluster(error: EnginewrightError) -> str:
    return str(error).replace("cluster.address", f"the cluster in {FLEET}")


def _answers(targets: Sequence[Target], address: str, sent: node.Sent) -> Iterator[tuple[Target, Answer | str]]:
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


def _node_for(target: Target, address: str) -> dict[str, Any]:
    """Return the first node with the resource, by address: so it is the same one each time."""
    import ray

    cluster = RayCluster(ray, ClusterParams(address=address, resource=target.ray))
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
    """Make what serves any machine, and return the last commit with the locks that tell of it."""
    if unknown := _git("ls-files", "--others", "--exclude-standard", str(Path("data").resolve())).decode().splitlines():
        raise EnginewrightError(
            f"targets get the last commit, and {unknown[0]} is not in it: `git add` or `dvc add` it, and commit"
        )
    dvc("repro", *SHARED)
    root = Path(_git("rev-parse", "--show-toplevel").decode().strip())
    within = _git("rev-parse", "--show-prefix").decode().strip()
    name = f"{root.name}-{sha256_of([socket.gethostname(), str(Path.cwd())])[:8]}"
    locks = {str(lock): lock.read_bytes() for lock in (LOCK, "machine" / LOCK)}  # they may be newer than the commit
    files = {PARAMS_FILE.name: _params_for_targets()} | locks
    return node.Sent(name, _git("-C", str(root), "archive", "HEAD"), within, files, (commit, json.dumps(versions())))


def _params_for_targets(baseline: str | None = None) -> bytes:
    """Return params.yaml so that the stages of a target stay on it, and race this baseline, if one is given."""
    yaml, written = YAML(), io.BytesIO()
    params = yaml.load(PARAMS_FILE.read_text(encoding="utf-8"))
    if params.get("cluster"):
        params["cluster"]["address"] = None
    if baseline:
        params.setdefault("benchmark", {})["baselines"] = [baseline]
    yaml.dump(params, written)
    return written.getvalue()


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True)
    if done.returncode:
        raise EnginewrightError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
