"""Spread work over the machines of a Ray cluster. Ray is imported only where an address is set."""

import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from enginewright.core.cores import AnyPart, Result, Work
from enginewright.core.errors import EnginewrightError
from enginewright.core.installing import how_to_install
from enginewright.core.params.build import ClusterParams
from enginewright.core.text import counted, first_line, in_one_line
from enginewright.targets.ray_task import Job, do_part, file_fields, forget, this_node

AHEAD = 2  # parts for each place of the cluster that are sent out before the first result is taken
RETRIES = 20  # of a part whose process or machine was lost
SECONDS_TO_ANSWER = 5.0
SECONDS_TO_CLEAN = 10.0
SECONDS_UNTIL_TOLD = 2.0
SECONDS_BETWEEN_LOOKS = 2.0  # at the head and its list of nodes
SECONDS_WITHOUT_HEAD = 30.0  # after 60, Ray ends this process
NOTHING_KEPT = "nothing half-written was kept"


def open_cluster(params: ClusterParams) -> AbstractContextManager["RayCluster | None"]:
    """Connect to the cluster that params.yaml names, or return None in its place."""
    return connected(params) if params.address else nullcontext()


@contextmanager
def whole_node(who: str, params: ClusterParams) -> Iterator[None]:
    """Let no other work of the cluster run on this machine meanwhile, if params.yaml names a cluster."""
    with open_cluster(params) as cluster, cluster.whole_node(who) if cluster else nullcontext():
        yield


@contextmanager
def connected(params: ClusterParams) -> Iterator["RayCluster"]:
    assert params.address, "the caller looked"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports to nobody
    try:
        import ray
    except ImportError:
        raise EnginewrightError(
            f"cluster.address is set, and Ray is not installed: {how_to_install('cluster')}, or set it to null"
        ) from None
    require_answer(params.address)
    ends_by = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=params.address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise EnginewrightError(
            f"cluster.address: {params.address} cannot be used from here; this machine must be a node of the cluster, "
            f"too (ray start --address=HOST:PORT): {in_one_line(error)[:300]}"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ends_by)  # Ray's way prints its stack, and may abort
    try:
        cluster = RayCluster(ray, params)
        cluster.require_nodes()
        yield cluster
    finally:
        ray.shutdown()


def require_answer(address: str) -> None:
    """Refuse an address at once that nobody answers: Ray tries for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise EnginewrightError(f"cluster.address: write HOST:PORT of the cluster's head, or auto, not '{address}'")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise EnginewrightError(
            f"cluster.address: nobody answers at {address} ({error}): start Ray there (ray start --head), or set it "
            "to null to work on this machine alone"
        ) from None


class RayCluster:
    def __init__(self, ray: Any, params: ClusterParams) -> None:
        self._ray, self._params = ray, params
        self._head = self._find_head()
        self._looked, self._seen = float("-inf"), list[dict[str, Any]]()

    @property
    def threads(self) -> int:
        """Return how many each part has."""
        return self._params.cores

    def require_nodes(self, gpus: int = 0) -> None:
        """Refuse a cluster of which no machine can take a part, which Ray would wait for."""
        self._looked = float("-inf")  # a machine may just have come
        if self.nodes(gpus):
            return
        asked, there = self._params.resource, []
        what = counted(self._params.cores, "core") + (f" and the resource '{asked}'" if asked else "")
        what += " and a GPU" if gpus else ""
        of_ray = ("node:", "memory", "object_store_memory", "accelerator_type:")
        for node in self.alive():
            named = [f"{name} {held:g}" for name, held in node["Resources"].items() if not name.startswith(of_ray)]
            there.append(f"{node['NodeManagerAddress']} with {', '.join(named) or 'nothing'}")
        raise EnginewrightError(f"cluster: no node has {what}; there are {'; '.join(there)}")

    def do(self, work: Work[AnyPart, Result], parts: Iterable[AnyPart]) -> Iterator[Result]:
        """Yield the results in order. Ray does a part again whose process or machine is lost."""
        self.require_nodes(work.gpus)
        resource = self._params.resource
        task = self._ray.remote(do_part).options(
            num_cpus=self._params.cores,
            num_gpus=work.gpus,
            resources={resource: 0.001} if resource else {},
            scheduling_strategy="SPREAD",
            max_retries=RETRIES,
        )
        with self._in_words():
            job = self._job(work)
            sent, waiting = self._ray.put(job), deque[Any]()
            try:
                for part in parts:
                    waiting.append(task.remote(sent, part.packed()))
                    if len(waiting) >= AHEAD * self.places(work.gpus):
                        yield self._result(waiting.popleft())
                while waiting:
                    yield self._result(waiting.popleft())
            finally:
                # A closed connection ends what was sent out. Without a head, nothing can be removed.
                with suppress(EnginewrightError):
                    if self._ray.is_initialized():
                        for left in waiting:
                            self._ray.cancel(left, force=True)
                        self._clean_up(job)

    @contextmanager
    def whole_node(self, who: str, node: dict[str, Any] | None = None) -> Iterator[None]:
        """Wait until no part is done on this machine, or on another node, and let none begin: for true timings."""
        here = self._ray.get_runtime_context().get_node_id()
        node = node or next(each for each in self.alive() if each["NodeID"] == here)
        if not (cores := node["Resources"].get("CPU", 0)):  # no parts are done here at all
            yield
            return
        bundle = {"CPU": cores, f"node:{node['NodeManagerAddress']}": 0.001}
        held = self._ray.util.placement_group([bundle], strategy="STRICT_PACK", _soft_target_node_id=node["NodeID"])
        try:
            if not held.wait(SECONDS_UNTIL_TOLD):
                print(f"{who} waits until the cluster's work on this node has ended", file=sys.stderr, flush=True)
                self._ray.get(held.ready())
            print(
                f"{who} has the whole node {node['NodeManagerAddress']}, {cores:g} cores", file=sys.stderr, flush=True
            )
            yield
        finally:
            self._ray.util.remove_placement_group(held)

    def places(self, gpus: int = 0) -> int:
        """Return how many parts can be done at a time. Machines may come and go."""
        of_part = {"CPU": self._params.cores} | ({"GPU": gpus} if gpus else {})
        held = (node["Resources"] for node in self.nodes(gpus))
        return max(1, sum(min(int(each[name]) // count for name, count in of_part.items()) for each in held))

    def alive(self) -> list[dict[str, Any]]:
        """Return the nodes as Ray knew them at most some seconds ago. Asked without its head, it ends this process."""
        if time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._require_head()
            self._seen = [node for node in self._ray.nodes() if node["Alive"]]
            self._looked = time.monotonic()
        return self._seen

    def _require_head(self) -> None:
        """Wait a while for a head that does not answer. One that was started again knows nothing of this work."""
        until = time.monotonic() + SECONDS_WITHOUT_HEAD
        while (found := self._find_head()) is None and time.monotonic() < until:
            time.sleep(1)
        if found is None or found != self._head:
            what = "does not answer any more" if found is None else "was started again"
            raise EnginewrightError(
                f"cluster: the head {what}; {NOTHING_KEPT}. Start Ray on all nodes again, and run `dvc repro` again"
            )

    def _find_head(self) -> str | None:
        """Return the name that the head gave the cluster when it was started, or None if it does not answer."""
        address = self._ray.get_runtime_context().gcs_address
        try:
            require_answer(address)
            return str(self._ray._raylet.GcsClient(address=address).cluster_id.hex())
        except (EnginewrightError, self._ray.exceptions.RayError):
            return None

    def nodes(self, gpus: int = 0) -> list[dict[str, Any]]:
        """Return the nodes that can take a part."""
        asked, least = self._params.resource, {"CPU": self._params.cores, "GPU": gpus}
        able = [node for node in self.alive() if all(node["Resources"].get(name, 0) >= least[name] for name in least)]
        return [node for node in able if asked is None or asked in node["Resources"]]

    def _job(self, work: Work[Any, Any]) -> Job:
        files = {f"code/{place}": file for place, file in work.code.items()}
        for name, path in file_fields(work).items():
            for file in [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file()):
                files[f"{name}/{file.relative_to(path.parent).as_posix()}"] = file
        return Job(
            name=uuid.uuid4().hex,
            work=work,
            files={place: self._ray.put(np.fromfile(file, np.uint8)) for place, file in files.items()},
            node=this_node(),
            threads=self._params.cores,
        )

    def _result(self, reference: Any) -> Any:
        while not self._ray.wait([reference], timeout=SECONDS_BETWEEN_LOOKS)[0]:
            self._require_head()
        return self._ray.get(reference)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Say in a sentence what happened to a part."""
        errors = self._ray.exceptions
        try:
            yield
        except errors.RayError as error:
            cause = getattr(error, "cause", error)  # of an error within a part
            if isinstance(cause, EnginewrightError):
                why = str(cause)
            elif isinstance(cause, ImportError | AttributeError):
                why = f"a node of the cluster cannot run this version of Enginewright ({cause}): set it up from the "
                why += "same commit and requirements.lock"
            elif isinstance(cause, errors.ObjectStoreFullError | errors.OutOfDiskError):
                why = "cluster: Ray's object store is full, and so is the disk that it writes to "
                why += f"({type(cause).__name__}); {NOTHING_KEPT}. Free space on the nodes, or start them with a "
                why += "--temp-dir on another disk"
            elif isinstance(error, errors.RayTaskError):
                raise
            else:
                why = f"cluster: a part was lost {RETRIES} times ({type(error).__name__}: {first_line(error)}); "
                why += f"{NOTHING_KEPT}. Look at the nodes with `ray status`, and run `dvc repro` again"
            raise EnginewrightError(why) from None

    def _clean_up(self, job: Job) -> None:
        """Remove the job's files from each machine that answers."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        task = self._ray.remote(forget)
        cleaning = [
            task.options(num_cpus=0, scheduling_strategy=strategy(node["NodeID"], soft=False)).remote(job.name)
            for node in self.nodes()
        ]
        self._ray.wait(cleaning, num_returns=len(cleaning), timeout=SECONDS_TO_CLEAN)
