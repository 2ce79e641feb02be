"""Measure how calibration and validation scale with the workers of a Ray cluster, and kill workers meanwhile.

Clusters of 1 to 16 workers, of a core each, are started on this machine one after the other. They do the work of the
stages on the pipeline's own samples, repeated. The bytes must be the same for each number of workers, and after kills.
After `dvc repro`, such as of recipes/resnet50.yaml, on a machine that does nothing else:

    python benchmarks/cluster.py --images 20000 --workers 1 2 4 8 16 --kills 50 --picture scaling.png

The exit code is 1 where bytes differ, or fewer than 85 % of linear are reached.
"""

import argparse
import hashlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from ray.cluster_utils import Cluster as LocalCluster
from tabulate import tabulate

from enginery.accuracy.agreement import compare
from enginery.cluster.ray_cluster import connected
from enginery.cluster.spread import Cluster, spread
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


def killing(cluster: Cluster, kills: int, options: argparse.Namespace) -> tuple[int, set[str]]:
    """Do the work again and again while workers are killed at random, and return how many were, and the digests."""
    done, killed, found = threading.Event(), [0], set[str]()
    chance = random.Random(0)

    def kill() -> None:
        while not done.wait(chance.uniform(1, 5)) and killed[0] < kills:
            of_ours = [each for each in psutil.process_iter(["name", "uids"]) if each.info["uids"].real == os.getuid()]
            if at_work := [each for each in of_ours if (each.info["name"] or "").startswith("ray::do_part")]:
                chance.choice(at_work).kill()
                killed[0] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while killed[0] < kills:
            for name in WORK:
                found.add(f"{name} {WORK[name](options.images, options.precision, cluster)}")
    finally:
        done.set()
        killer.join()
    return killed[0], found


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
                killed, found = killing(cluster, options.kills, options)
                print(f"{killed} workers were killed: {', '.join(sorted(found))}")
                if found != {f"{row.work} {row.digest}" for row in rows}:
                    wrong.append("after kills, bytes differ")
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
