"""Ask the nodes of a Ray cluster. Each target has a whole node to itself, from the first build to the last race."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import LOCK, sha256_of
from enginewright.core.params.build import ClusterParams
from enginewright.core.params.section import PARAMS_FILE
from enginewright.targets import node
from enginewright.targets.answer import Answer
from enginewright.targets.file import FLEET, OnNode
from enginewright.targets.here import SHARED, dvc, versions
from enginewright.targets.ray_cluster import RayCluster, connected

Asked = tuple[OnNode, Answer | EnginewrightError]


def refused(targets: Sequence[OnNode], address: str, revision: str) -> dict[OnNode, EnginewrightError]:
    """Say of which targets it is clear, before minutes of work, that they cannot be asked, and why."""
    found = {}
    try:
        if revision.endswith("-dirty"):
            raise EnginewrightError(
                "nodes get the last commit, and files differ from it: commit them first (`git status`)"
            )
        with connected(ClusterParams(address=address)):
            import ray

            for target in targets:
                try:
                    _node_for(target, address, ray)
                except EnginewrightError as error:
                    found[target] = error
    except EnginewrightError as error:
        return dict(_all_of(targets, error))
    return found


def ask_nodes(targets: Sequence[OnNode], address: str, revision: str) -> Iterator[Asked]:
    """Yield what each target answers, or why it does not. What hinders all, such as no remote, is every one's."""
    try:
        sent = _packed(revision)
        with connected(ClusterParams(address=address)):
            yield from _answers(targets, address, sent)
    except EnginewrightError as error:
        yield from _all_of(targets, error)


def _all_of(targets: Sequence[OnNode], error: EnginewrightError) -> Iterator[tuple[OnNode, EnginewrightError]]:
    said = str(error).replace("cluster.address", f"the cluster in {FLEET}")
    return ((target, EnginewrightError(said)) for target in targets)


def _answers(targets: Sequence[OnNode], address: str, sent: node.Sent) -> Iterator[Asked]:
    import ray

    ray.cloudpickle.register_pickle_by_value(node)
    task, waiting = ray.remote(node.run_on_node), {}
    for target in targets:
        try:
            where = _node_for(target, address, ray)
        except EnginewrightError as error:
            yield target, error
            continue
        held = where["Resources"]
        taken = f"the whole node {where['NodeManagerAddress']}, {held['CPU']:g} cores"
        print(f"{target.name} takes {taken}, as soon as it is free", file=sys.stderr, flush=True)
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(where["NodeID"], soft=False)
        whole = task.options(
            num_cpus=held["CPU"], num_gpus=held.get("GPU", 0), scheduling_strategy=strategy, max_retries=0
        )
        its_own = sent._replace(name=f"{sent.name}/{target.name}", arguments=(target.name, *sent.arguments))
        waiting[whole.remote(its_own)] = target
    try:
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            target = waiting.pop(done)
            yield target, _answer(done, ray)
    finally:
        for left in waiting:
            ray.cancel(left, force=True)


def _node_for(target: OnNode, address: str, ray: Any) -> dict[str, Any]:
    """Return the first node with the resource, by address: so it is the same one each time."""
    cluster = RayCluster(ray, ClusterParams(address=address, resource=target.resource))
    cluster.require_nodes()
    return min(cluster.nodes(), key=lambda one: (str(one["NodeManagerAddress"]), str(one["NodeID"])))


def _answer(reference: Any, ray: Any) -> Answer | EnginewrightError:
    try:
        name, answer, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        last = (str(error).strip().splitlines() or ["it gives no reason"])[-1]
        return EnginewrightError(f"the node was lost, or cannot do it: {type(error).__name__}: {last}")
    if failure:
        return EnginewrightError(failure)
    try:
        return Answer.parse(answer.encode(), f"the answer of {name}")
    except EnginewrightError as error:  # it is this target's alone
        return error


def _packed(revision: str) -> node.Sent:
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
    return node.Sent(name, _git("-C", str(root), "archive", "HEAD"), within, files, (revision, json.dumps(versions())))


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
