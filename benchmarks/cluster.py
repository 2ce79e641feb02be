"""Measure how calibration and validation scale with the workers of a Ray cluster, what a cluster costs on one machine,
and whether kills of workers change a byte.

Clusters of 1 to 16 workers, of a core each, are started on this machine one after the other. They do the work of the
stages on the pipeline's own samples, repeated. The bytes must be the same for each number of workers, and after kills.
After `dvc repro`, such as of recipes/resnet50.yaml, on a machine that does nothing else:

    python benchmarks/cluster.py --images 20000 --workers 1 2 4 8 16 --pairs 5 --kills 50 --picture scaling.png

`--pairs` runs without a cluster and with one worker for each core in turn. `--kills` repeats the work, and kills a
worker at a random moment of each run. The exit code is 1 where bytes differ, where fewer than 85 % of linear are
reached, or where the cluster takes 10 % longer than the plain run.
"""

import argparse
import hashlib
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import psutil
from ray.cluster_utils import Cluster as LocalCluster
from tabulate import tabulate

from enginery.accuracy.agreement import compare
from enginery.cluster.ray_cluster import connected
from enginery.cluster.spread import Cluster, spread
from enginery.core.cores import usable_cores
from enginery.core.params.all import Params
from enginery.core.params.cluster import ClusterParams
from enginery.data.parts import cut
from enginery.data.run_all import outputs_on, run_all
from enginery.data.sample_set import SampleSet
from enginery.engine.engine import open_engine
from enginery.engine.in_parts import EngineWork
from enginery.graph.as_written import GraphWork, run_as_written
from enginery.quantization.calibration.measure import Histograms, Measuring

ARTIFACTS = Path("artifacts")
LEAST = 0.85  # of linear
MOST = 1.10  # times what the plain run takes
Pass = Callable[[int, str, Cluster | None], str]  # returns a digest of the result


class Row(NamedTuple):
    work: str
    workers: int
    seconds: float
    digest: str


def calibrate(images: int, precision: str, cluster: Cluster | None) -> str:
    params, samples = Params.read().calibration, SampleSet.open(ARTIFACTS / "samples" / "calibration")
    order = np.arange(images) % len(samples)
    batches = [order[start : start + params.batch] for start in range(0, images, params.batch)]
    merged: Histograms = {}
    for found in spread(Measuring(ARTIFACTS / "simplified", params.bins), cut(samples, batches), cluster):
        for name, histogram in found.items():
            if name in merged:
                merged[name].merge(histogram)
            else:
                merged[name] = histogram
    digest = hashlib.sha256()
    for histogram in merged.values():
        digest.update(histogram.counts.tobytes())
        digest.update(repr((histogram.width, histogram.amax, histogram.lowest, histogram.peaks)).encode())
    return digest.hexdigest()[:8]


def validate(images: int, precision: str, cluster: Cluster | None) -> str:
    params, samples = Params.read(), SampleSet.open(ARTIFACTS / "samples" / "validation")
    engine, converted = ARTIFACTS / "engines" / precision, ARTIFACTS / "converted" / precision
    chosen, batch = np.arange(images) % len(samples), params.build.profile.batch.max
    with open_engine(engine, None, params.inference) as opened:
        works = {"graph": GraphWork(converted), "engine": EngineWork(engine, params.inference)}
        runs = {"graph": run_as_written(converted / "model.onnx"), "engine": opened.run}
        graph, compiled = (
            run_all(run, samples, batch, False, chosen=chosen, outputs=outputs_on(works[name], cluster))
            for name, run in runs.items()
        )
    digest = hashlib.sha256(compare(graph, compiled).model_dump_json().encode())
    for outputs in (graph, compiled):
        for values in outputs.values():
            digest.update(values.tobytes())
    return digest.hexdigest()[:8]


WORK: dict[str, Pass] = {"calibrate": calibrate, "validate": validate}


@contextmanager
def workers(count: int) -> Iterator[Cluster]:
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as the plain run; Ray's give way to others
    started = LocalCluster(initialize_head=True, head_node_args={"num_cpus": count, "include_dashboard": False})
    try:
        with connected(ClusterParams(address=started.address)) as cluster:
            yield cluster
    finally:
        started.shutdown()


def timed(name: str, count: int, options: argparse.Namespace, cluster: Cluster | None) -> Row:
    started = time.perf_counter()
    digest = WORK[name](options.images, options.precision, cluster)
    row = Row(name, count, time.perf_counter() - started, digest)
    print(f"{name}, {count or 'no'} workers: {row.seconds:.1f} s, {digest}", flush=True)
    return row


def overhead(pairs: int, options: argparse.Namespace) -> list[str]:
    """Run without a cluster and with one of as many workers as cores in turn, and return what is wrong."""
    wrong = []
    with workers(usable_cores()) as cluster:
        for name, work in WORK.items():
            work(options.images, options.precision, cluster)  # starts the processes
            ratios: dict[str, list[float]] = {"time": [], "processor time": []}
            for _ in range(pairs):
                plain, spread_out = (_costs(work, options, on) for on in (None, cluster))
                for what, here, there in zip(ratios, plain, spread_out, strict=True):
                    ratios[what].append(there / here)
            for what, found in ratios.items():
                told = f"{median(found):.2f} times the plain run's {what} ({min(found):.2f} to {max(found):.2f})"
                print(f"{name} with {usable_cores()} workers takes {told}, {pairs} pairs", flush=True)
            if median(ratios["time"]) > MOST:
                wrong.append(f"{name} on a cluster takes {median(ratios['time']):.2f} times as long as without one")
    return wrong


def _costs(work: Pass, options: argparse.Namespace, cluster: Cluster | None) -> tuple[float, float]:
    """Return the seconds, and those of processors, of this process and of Ray's."""
    before, started = _processor_seconds(), time.perf_counter()
    work(options.images, options.precision, cluster)
    return time.perf_counter() - started, _processor_seconds() - before


def _processor_seconds() -> float:
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def killing(cluster: Cluster, rows: list[Row], options: argparse.Namespace) -> Counter[str]:
    """Do calibration and validation in turn, and kill a worker in each run. Return how often which bytes came out. A
    run that ended before its kill is repeated."""
    found, chance = Counter[str](), random.Random(0)
    while (number := found.total()) < options.kills:
        row = rows[number % len(rows)]
        done, killed = threading.Event(), threading.Event()
        killer = threading.Thread(target=_kill, args=(chance.uniform(0, row.seconds), done, killed))
        killer.start()
        digest = WORK[row.work](options.images, options.precision, cluster)
        done.set()
        killer.join()
        if killed.is_set():
            found[f"{row.work} {digest}"] += 1
            print(f"kill {found.total()}: {row.work}, {digest}", flush=True)
    return found


def _kill(after: float, done: threading.Event, killed: threading.Event) -> None:
    """Kill a worker of ours that is at work, unless the run has ended."""
    done.wait(after)
    while not done.wait(0.01):
        ours = psutil.Process().children(recursive=True)
        for worker in random.sample(ours, len(ours)):
            with suppress(psutil.NoSuchProcess):
                if worker.name().startswith("ray::do_part") and not done.is_set():
                    worker.kill()
                    killed.set()
                    return


def draw(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    counts = sorted({row.workers for row in rows})
    axes.plot(counts, counts, color="grey", linestyle=":", label="linear")
    for name in WORK:
        seconds = {row.workers: row.seconds for row in rows if row.work == name}
        axes.plot(counts, [seconds[counts[0]] * counts[0] / seconds[count] for count in counts], "o-", label=name)
    axes.set(xlabel="workers", ylabel="times as fast as one", xscale="log", yscale="log", xticks=counts, yticks=counts)
    axes.set_xticklabels(map(str, counts))
    axes.set_yticklabels(map(str, counts))
    axes.legend()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--pairs", type=int, default=0, help="of a run without a cluster and one with it")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    plain = [timed(name, 0, options, None) for name in WORK]
    rows: list[Row] = []
    wrong = []
    for count in options.workers:
        with workers(count) as cluster:
            for name in WORK:
                WORK[name](min(options.images, 256 * count), options.precision, cluster)  # starts the processes
                rows.append(timed(name, count, options, cluster))
            if options.kills and count == options.workers[-1]:
                found = killing(cluster, rows[-len(WORK) :], options)
                same = sum(found[f"{row.work} {row.digest}"] for row in rows[-len(WORK) :])
                print(
                    f"{found.total()} runs with a kill, {same} of them with the same bytes: {dict(found)}", flush=True
                )
                if same < found.total():
                    wrong.append("after kills, bytes differ")
    if options.pairs:
        wrong += overhead(options.pairs, options)
    if options.picture:
        draw(rows, options.picture)
    alone = {row.work: row for row in rows if row.workers == options.workers[0]}
    table = []
    for row in rows:
        linear = alone[row.work].seconds * alone[row.work].workers / row.seconds / row.workers
        per_second = options.images / row.seconds
        table.append([row.work, row.workers, f"{row.seconds:.1f}", f"{per_second:.0f}", f"{linear:.0%}", row.digest])
        if linear < LEAST:
            wrong.append(f"{row.work} with {row.workers} workers reaches {linear:.0%} of linear")
        if row.digest != alone[row.work].digest:
            wrong.append(f"{row.work} with {row.workers} workers gives other bytes")
    print(tabulate(table, ["work", "workers", "seconds", "images/s", "of linear", "bytes"], tablefmt="github"))
    for row in plain:
        print(f"{row.work} without a cluster, on all cores of this machine: {row.seconds:.1f} s, bytes {row.digest}")
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
