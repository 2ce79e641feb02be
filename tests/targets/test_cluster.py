"""Work over a real cluster of Ray's, whose nodes are processes of this machine."""

import os
import re
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from enginewright.core.errors import EnginewrightError
from enginewright.core.installing import how_to_install
from enginewright.core.params.build import ClusterParams
from enginewright.core.params.precisions import Thresholds
from enginewright.data import run_all as run_all_module
from enginewright.data.run_all import Running, outputs_here, outputs_on, run_all
from enginewright.data.sample_set import MANIFEST, Part, SampleSet, cut, input_file
from enginewright.engine.engine import open_engine, running_engine
from enginewright.graph.as_written import run_as_written, running_graph
from enginewright.graph.onnx_file import save_graph
from enginewright.measure.agreement import Judge
from enginewright.precision.calibration.calibrate import Measuring, measure_samples
from enginewright.precision.checks import Checks
from enginewright.precision.placement import arithmetic_nodes
from enginewright.precision.search import Journal, LayerTrial, SwitchedGraph, find_spared, running_on
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8
from enginewright.targets import ask, ray_cluster
from enginewright.targets import ray_task as task
from enginewright.targets.file import Target
from enginewright.targets.ray_cluster import connected, open_cluster
from enginewright.tasks.choose import task_of

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
ENOUGH = 64  # samples, so that there can be as many parts


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else workers wait for every other program of this machine
        started = Cluster(
            initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "resources": {"desk": 1}}
        )
        yield started
        started.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no node can import tests
    with connected(ClusterParams(address=nodes.address)) as found:
        yield found


@pytest.fixture(scope="module")
def many(samples, manifest, tmp_path_factory):
    return stored(samples.portion(np.arange(ENOUGH) % len(samples)), manifest, tmp_path_factory.mktemp("many"))


def stored(portion, manifest, folder, **changes):
    names = tuple(manifest.samples[0] for _ in range(ENOUGH))
    (pixels,) = portion.held.values()
    np.save(folder / input_file(0), changes.pop("pixels", pixels))
    manifest.model_copy(update={"samples": names, **changes}).write(folder / MANIFEST)
    return SampleSet.open(folder)


@pytest.fixture(scope="module")
def folder(tiny_graph, tmp_path_factory):
    made = tmp_path_factory.mktemp("simplified")
    save_graph(tiny_graph, made / "model.onnx")
    return made


class OneThread:
    """Do work here, with as many threads as a task has: another number may change the last bits of sums."""

    def do(self, work, parts):
        with work.open(threads=1) as do:
            yield from map(do, parts)


def content(found):
    """Return what was measured in a form that can be compared."""
    return {name: (h.counts.tobytes(), h.width, h.amax, h.lowest, h.peaks) for name, h in found.items()}


def measured(folder, samples, parts, cluster):
    return content(measure_samples(Measuring(folder, 128), samples, 1, False, cluster, at_once=-(-ENOUGH // parts)))


@dataclass(frozen=True)
class Dying(Measuring):
    """Measure, in processes of which each of the first few is killed at work."""

    deaths: str = ""
    most: int = 2

    @contextmanager
    def open(self, threads):
        def do(part):
            if len(os.listdir(self.deaths)) < self.most:
                Path(self.deaths, str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return measuring(part)

        with Measuring.open(self, threads) as measuring:
            yield do


@dataclass(frozen=True)
class Large(Measuring):
    @contextmanager
    def open(self, threads):
        yield lambda part: np.full(NODE["object_store_memory"] + 1, 7, np.uint8)


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_ranges_do_not_depend_on_the_number_of_parts(folder, many, cluster, parts):
    assert measured(folder, many, parts, None) == measured(folder, many, 1, None)
    assert measured(folder, many, parts, cluster) == measured(folder, many, 1, OneThread())


def test_killed_workers_and_machines_that_come_and_go_change_nothing(folder, many, cluster, nodes, tmp_path):
    wanted, joined = measured(folder, many, 1, OneThread()), []

    def parts():
        for place in range(ENOUGH):
            if place == 3:
                joined.append(nodes.add_node(**NODE))
            if place == 40:
                nodes.remove_node(joined[0], allow_graceful=False)
            yield Part(many, (np.array([place]),))

    found = list(cluster.do(Dying(folder, 128, deaths=str(tmp_path)), parts()))
    merged = found[0]
    for each in found[1:]:
        for name, histogram in each.items():
            merged[name].merge(histogram)
    assert content(merged) == wanted
    assert len(list(tmp_path.iterdir())) >= 2


def test_outputs_are_the_same_bytes(folder, many, built, machine, inference, cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(run_all_module, "cut", partial(cut, at_once=8))  # several parts
    monkeypatch.chdir(tmp_path)
    with open_engine(built, machine, inference) as engine:
        for run, work in (
            (run_as_written(folder / "model.onnx", threads=1), Running(folder, running_graph)),
            (engine.run, Running(built, partial(running_engine, inference=inference))),
        ):
            here = run_all(outputs_here(run), many, 4, True)
            there = run_all(outputs_on(work, cluster), many, 4, True)
            assert {name: values.tobytes() for name, values in here.items()} == {
                name: values.tobytes() for name, values in there.items()
            }


def test_a_search_finds_the_same_with_any_number_of_parts(folder, tiny_graph, many, cluster, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    measured_here = measure_samples(Measuring(folder, 2048), many, 4, False, None)
    ranges = {name: Bounds(each.lowest, each.amax) for name, each in measured_here.items()}
    rounding = Rounding(ranges, largest=64)
    layers = arithmetic_nodes(tiny_graph, ())
    task = task_of("classification", None, many.manifest.class_names)
    strict = Thresholds(cosine=0.9, relative_error=0.004, agreement=0.5, metric_drop=0.5)
    judge = Judge(task, many.truth, strict)

    def write(spared):
        return write_int8(tiny_graph, rounding.sparing(spared))

    def trial(on, parts, convert=write):
        monkeypatch.setattr(run_all_module, "cut", partial(cut, at_once=-(-ENOUGH // parts)))
        there = running_on(on, tiny_graph, tmp_path)
        checks, switch = Checks(tiny_graph, many, judge, exact_there=there), partial(SwitchedGraph, rounding=rounding)
        return LayerTrial(checks, switch, convert, tmp_path, on)

    def found(trial, name):
        work = dict.fromkeys(layers, 1 / len(layers))
        return find_spared(trial, work, Journal(tmp_path / name), 60)

    wanted = found(trial(OneThread(), 1), "here.jsonl")
    assert len(wanted.losses) == len(layers)
    assert 0 < len(wanted.spared) < len(layers)
    assert found(trial(cluster, 7), "there.jsonl") == wanted
    for parts in (1, 2, 64):
        assert trial(cluster, parts).check([], 0.0) == wanted.path[0]
    as_it_is = trial(cluster, 1, convert=lambda spared: tiny_graph)
    assert as_it_is.check([], 0.0).relative_error == 0, "the graph that is written is the one that runs"


def test_results_larger_than_the_object_store_arrive(folder, many, cluster):
    (found,) = cluster.do(Large(folder, 128), [Part(many, (np.array([0]),))])
    assert len(found) > NODE["object_store_memory"]
    assert (found == 7).all()


def test_a_machine_needs_no_samples(folder, many, cluster, tmp_path):
    shutil.copytree(many.folder, tmp_path / "set")
    packed = [part.packed() for part in cut(SampleSet.open(tmp_path / "set"), many.places(np.arange(ENOUGH), 1, False))]
    shutil.rmtree(tmp_path / "set")
    (found,) = cluster.do(Measuring(folder, 128), packed)
    assert content(found) == measured(folder, many, 1, OneThread())


def test_no_files_are_left_on_the_machines(folder, many, cluster):
    before = set(task.HERE.iterdir()) if task.HERE.exists() else set()
    measured(folder, many, 2, cluster)
    assert set(task.HERE.iterdir()) <= before


def test_the_next_job_removes_the_files_of_one_whose_driver_was_killed(folder, many, cluster):
    task.HERE.mkdir(mode=0o700, exist_ok=True)
    lost, recent = (task.HERE / f"{name}-{os.getpid()}" for name in ("lost", "recent"))
    for job in (lost, recent):
        (job / "model").mkdir(parents=True)
    os.utime(lost, (0, 0))
    measured(folder, many, 1, cluster)
    assert [job.exists() for job in (lost, recent)] == [False, True]
    task.forget(recent.name)


@dataclass(frozen=True)
class Importing(Measuring):
    @contextmanager
    def open(self, threads):
        yield lambda part: import_module("of_the_user").ANSWER


def test_modules_of_the_user_go_along(folder, many, cluster, tmp_path):
    (tmp_path / "of_the_user.py").write_text("ANSWER = 7\n")
    work = Importing(folder, 128, code={"of_the_user.py": tmp_path / "of_the_user.py"})
    assert list(cluster.do(work, [Part(many, (np.array([0]),))])) == [7]


@dataclass(frozen=True)
class Waiting(Measuring):
    """Work that ends when a file is there."""

    file: str = ""

    @contextmanager
    def open(self, threads):
        def do(part):
            Path(self.file, "begun").touch()
            while not Path(self.file, "end").exists():
                time.sleep(0.05)
            return time.monotonic()

        yield do


def test_a_race_has_the_whole_node_and_says_which(folder, many, cluster, nodes, tmp_path, capsys, monkeypatch):
    """The clock is the same for all processes of a machine."""
    monkeypatch.setattr(ray_cluster, "SECONDS_UNTIL_TOLD", 0.1)
    one = Part(many, (np.array([0]),))
    with ThreadPoolExecutor() as pool:
        before = pool.submit(lambda: list(cluster.do(Waiting(folder, 128, file=str(tmp_path)), [one])))
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        pool.submit(lambda: (time.sleep(1), (tmp_path / "end").touch()))
        with cluster.whole_node("a race"):
            began = time.monotonic()
            (tmp_path / "begun").unlink()
            after = pool.submit(lambda: list(cluster.do(Waiting(folder, 128, file=str(tmp_path)), [one])))
            time.sleep(1)
            assert not (tmp_path / "begun").exists(), "it waits for the end of the race"
            ended = time.monotonic()
        assert before.result()[0] < began
        assert after.result()[0] > ended
    told = capsys.readouterr()
    assert "a race waits until the cluster's work on this node has ended" in told.err
    assert re.search(r"a race has the whole node [\d.]+, 1 cores", told.err)


def test_a_target_of_a_fleet_has_its_node_alone_and_its_address_for_ssh(folder, many, cluster, nodes, tmp_path):
    one = Part(many, (np.array([0]),))
    with ThreadPoolExecutor() as pool, ask._held(Target(name="board", ray="desk"), "auto") as held:
        assert held.ssh == cluster.alive()[0]["NodeManagerAddress"]
        after = pool.submit(lambda: list(cluster.do(Waiting(folder, 128, file=str(tmp_path)), [one])))
        time.sleep(1)
        assert not (tmp_path / "begun").exists(), "it waits for the end of the race"
        (tmp_path / "end").touch()
        ended = time.monotonic()
        pool.submit(lambda: None)
    assert after.result()[0] > ended


def test_a_target_may_say_itself_how_ssh_reaches_its_node(cluster):
    with ask._held(Target(name="board", ray="desk", ssh="user@board"), "auto") as held:
        assert held.ssh == "user@board"
    with (
        pytest.raises(EnginewrightError, match="no node has 1 core and the resource 'h200'"),
        ask._held(Target(name="h200", ray="h200"), "auto"),
    ):
        pass


# What goes wrong.


def test_a_full_object_store_without_a_disk_is_told(folder, many, cluster, nodes):
    """Ray writes what its store cannot hold to a disk, unless that is as full as this machine is told it may be."""
    full = nodes.add_node(**NODE, resources={"full": 1}, env_vars={"RAY_local_fs_capacity_threshold": "0.000001"})
    on_full = ray_cluster.RayCluster(ray, ClusterParams(address="auto", resource="full"))
    try:
        with pytest.raises(EnginewrightError, match=r"object store is full, and so is the disk .*nothing half-written"):
            list(on_full.do(Large(folder, 128), [Part(many, (np.array([0]),))]))
    finally:
        nodes.remove_node(full)


def test_a_mistake_in_a_part_is_told_as_without_a_cluster(folder, samples, manifest, cluster, tmp_path):
    values = np.full((ENOUGH, 3, 8, 8), np.nan, np.float32)
    broken = stored(samples.portion(np.arange(1)), manifest, tmp_path, preprocessing=None, pixels=values)
    with pytest.raises(EnginewrightError, match=r"^the activation input holds NaN or infinity; are the weights right"):
        measured(folder, broken, 2, cluster)


def test_a_node_of_another_version_is_refused(folder, many, cluster, monkeypatch):
    monkeypatch.setattr(ray_cluster, "this_node", lambda: {**task.this_node(), "numpy": "1.0"})
    with pytest.raises(EnginewrightError, match=r"differs in numpy \([\d.]+, here 1.0\): results would depend"):
        measured(folder, many, 2, cluster)


def test_a_part_that_is_lost_again_and_again_ends_in_a_sentence(folder, many, cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(ray_cluster, "RETRIES", 1)
    with pytest.raises(EnginewrightError, match=r"a part was lost 1 times .*nothing half-written was kept"):
        list(cluster.do(Dying(folder, 128, deaths=str(tmp_path), most=99), [Part(many, (np.array([0]),))]))


def test_a_resource_that_no_node_has_is_refused_with_those_that_there_are(cluster):
    asking = ray_cluster.RayCluster(ray, ClusterParams(address="auto", resource="h200"))
    with pytest.raises(
        EnginewrightError, match=r"no node has 1 core and the resource 'h200'; there are .* with .*CPU 1"
    ):
        asking.require_nodes()
    with pytest.raises(EnginewrightError, match=r"no node has 1 core and a GPU; there are .* with .*CPU 1"):
        ray_cluster.RayCluster(ray, ClusterParams(address="auto")).require_nodes(gpus=1)


def test_a_head_that_is_lost_or_started_again_is_told(folder, many, cluster, nodes, monkeypatch):
    """Ray would end this process in both cases. It is the last test on the cluster, which does not survive it."""
    monkeypatch.setattr(ray_cluster, "SECONDS_BETWEEN_LOOKS", 0.1)
    monkeypatch.setattr(ray_cluster, "SECONDS_WITHOUT_HEAD", 0.1)

    def parts():
        yield from cut(many, many.places(np.arange(ENOUGH), 1, False), at_once=1)
        nodes.head_node.kill_gcs_server()
        time.sleep(0.2)
        yield Part(many, (np.array([0]),))

    with pytest.raises(EnginewrightError, match=r"the head does not answer any more; nothing half-written was kept"):
        list(cluster.do(Measuring(folder, 128), parts()))
    nodes.head_node.start_gcs_server()
    while cluster._find_head() is None:
        time.sleep(0.1)
    with pytest.raises(EnginewrightError, match=r"the head was started again; .*Start Ray on all nodes again"):
        list(cluster.do(Measuring(folder, 128), parts()))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:{free}", "nobody answers at 127.0.0.1:.*set it to null to work on this machine alone"),
        ("ray://head:10001", "write HOST:PORT of the cluster's head, or auto"),
        ("head", "write HOST:PORT"),
        ("127.0.0.1:99999", "nobody answers"),
    ],
)
def test_an_address_that_is_no_cluster_is_refused_at_once(address, sentence):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        params = ClusterParams(address=address.format(free=unused.getsockname()[1]))
        with pytest.raises(EnginewrightError, match=sentence), connected(params):
            pass


def test_ray_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(EnginewrightError, match=re.escape(how_to_install("cluster"))),
        connected(ClusterParams(address="auto")),
    ):
        pass


def test_without_an_address_there_is_no_cluster():
    with open_cluster(ClusterParams()) as found:
        assert found is None
