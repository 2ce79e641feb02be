r"""Measure how calibration and validation scale with the workers of a Ray cluster, what a cluster costs on one machine,
and whether kills of workers change a byte.

Clusters of 1 to 16 workers, of a core each, are started on this machine one after the other. They do the work of the
stages on a project's own samples, repeated. Each number of workers does its share of the images, the largest number
does all, so that each measurement takes as long (`--share 0.5`: half as long). What all would take follows from the
pace between the results, and from what did not depend on their number. Beside each stands what as many plain processes
do, which know of no cluster: see cluster_work.py. The bytes for the first images must be the same for each number of
workers, and after kills.

On a machine that does nothing else:

    python benchmarks/scale/cluster.py --make /tmp/resnet50 --pairs 5 --kills 50

`--make` makes the project, ResNet-50 at 64 pixels, if it is not there; else it is that of the current folder, after
`dvc repro`. `--pairs` runs without a cluster and with one worker for each core in turn. `--kills` repeats the work,
and kills a worker at a random moment of each run. Each measurement is appended to `--rows` at once, and the picture
is drawn again from all rows there: measurements may come from several calls. The exit code is 1 where bytes differ,
where fewer than 85 % of linear are reached, or where the cluster takes 10 % longer than the plain run.

On 16 cores, in two calls of 5 minutes at most, of which the first makes the project, too. The largest number of
workers comes first, and one after it: if a call is cut short, what is left out counts least. The third call prints
and draws all:

    python benchmarks/scale/cluster.py --make /tmp/resnet50 --work calibrate --images 20000 --workers 16 1 8 4 \
        --share 0.5 --seconds 5 --rows cluster.jsonl --picture scaling.png
    python benchmarks/scale/cluster.py --make /tmp/resnet50 --work validate --images 20000 --workers 16 1 8 4 \
        --share 0.5 --seconds 5 --rows cluster.jsonl --picture scaling.png
    python benchmarks/scale/cluster.py --workers --rows cluster.jsonl --picture scaling.png
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil
from cluster_work import ARTIFACTS, PRECISION, make_project, measuring, parts_of, running, set_and_batch
from ray.cluster_utils import Cluster as LocalCluster
from tabulate import tabulate

from enginewright.core.cores import AnyPart, Cluster, Result, Work, spread, usable_cores
from enginewright.core.params.all import Params
from enginewright.core.params.build import ClusterParams
from enginewright.data.run_all import outputs_here, outputs_on, run_all
from enginewright.data.sample_set import AT_ONCE
from enginewright.engine.engine import open_engine
from enginewright.engine.runtimes import find_cpu
from enginewright.graph.as_written import run_as_written
from enginewright.measure.agreement import compare
from enginewright.precision.calibration.histogram import Histogram
from enginewright.targets.ray_cluster import connected

LEAST = 0.85  # of linear
MOST = 1.10  # times what the plain run takes
FIRST = 4  # parts whose bytes are compared
Pass = Callable[[int, str, Cluster | None], str]


class Row(NamedTuple):
    work: str
    how: str  # cluster, processes, or alone: without a cluster, on all cores
    workers: int
    images: int  # done, of `of`
    of: int
    seconds: float
    for_all: float  # seconds that all images take
    digest: str
    where: str


def calibrate(images: int, precision: str, cluster: Cluster | None) -> str:
    """Return a digest of the histograms of the first images."""
    merged: dict[str, Histogram] = {}
    parts, found = parts_of("calibrate", images), hashlib.sha256()
    for done, part in enumerate(spread(measuring(), parts, cluster), 1):
        for name, histogram in part.items():
            if name in merged:
                merged[name].merge(histogram)
            else:
                merged[name] = histogram
        if done == min(FIRST, len(parts)):
            for each in merged.values():
                found.update(each.counts.tobytes())
                found.update(repr((each.width, each.amax, each.lowest, each.peaks)).encode())
    return found.hexdigest()[:8]


def validate(images: int, precision: str, cluster: Cluster | None) -> str:
    """Return a digest of the outputs for the first images."""
    samples, batch = set_and_batch("validate")
    engine, converted = ARTIFACTS / "engines" / precision, ARTIFACTS / "converted" / precision
    chosen, found = np.arange(images) % len(samples), hashlib.sha256()
    with open_engine(engine, None, Params.read().inference) as opened:
        runs = run_as_written(converted / "model.onnx"), opened.run
        graph, compiled = (
            run_all(outputs_on(work, cluster) or outputs_here(run), samples, batch, False, chosen=chosen)
            for run, work in zip(runs, running(precision), strict=True)
        )
    compare(graph, compiled)
    for outputs in (graph, compiled):
        for values in outputs.values():
            found.update(values[: FIRST * AT_ONCE].tobytes())
    return found.hexdigest()[:8]


WORK: dict[str, Pass] = {"calibrate": calibrate, "validate": validate}


class Watched:
    """A cluster, and when each result of its work came."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.came = cluster, list[list[float]]()

    def do(self, work: Work[AnyPart, Result], parts: Iterable[AnyPart]) -> Iterator[Result]:
        came = list[float]()
        self.came.append(came)
        for result in self._cluster.do(work, parts):
            came.append(time.perf_counter())
            yield result

    def seconds_for(self, parts: int, workers: int) -> float:
        """Return the seconds that so many more parts take, once all workers are at work."""
        paces = [(came[-1] - came[workers - 1]) / max(1, len(came) - workers) for came in self.came]
        return parts * sum(paces)


@contextmanager
def workers(count: int) -> Iterator[Cluster]:
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as the plain run; Ray's give way to others
    started = LocalCluster(initialize_head=True, head_node_args={"num_cpus": count, "include_dashboard": False})
    try:
        with connected(ClusterParams(address=started.address)) as cluster:
            yield cluster
    finally:
        started.shutdown()


def on_cluster(name: str, count: int, options: argparse.Namespace, cluster: Cluster) -> Row:
    """Measure the share of the images that so many workers do. They have begun before."""
    share = int(options.share * options.images * count / max(options.workers)) // AT_ONCE * AT_ONCE
    images = min(options.images, max(share, FIRST * AT_ONCE)) if count < max(options.workers) else options.images
    WORK[name](count * AT_ONCE, options.precision, cluster)  # starts the processes
    watched, started = Watched(cluster), time.perf_counter()
    digest = WORK[name](images, options.precision, watched)
    seconds = time.perf_counter() - started
    left = watched.seconds_for((options.images - images) // AT_ONCE, count)
    return Row(name, "cluster", count, images, options.images, seconds, seconds + left, digest, where())


def in_processes(name: str, count: int, options: argparse.Namespace) -> Row:
    script = Path(__file__).with_name("cluster_work.py")
    how = ["--processes", str(count), "--seconds", str(options.seconds), "--precision", options.precision]
    command = [sys.executable, str(script), "--work", name, *how]
    rate = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    images = round(rate * options.seconds)
    return Row(name, "processes", count, images, options.images, options.seconds, options.images / rate, "", where())


def alone(name: str, options: argparse.Namespace) -> Row:
    started = time.perf_counter()
    digest = WORK[name](options.images, options.precision, None)
    seconds = time.perf_counter() - started
    return Row(name, "alone", usable_cores(), options.images, options.images, seconds, seconds, digest, where())


def where() -> str:
    return f"{find_cpu().device_name}, {usable_cores()} cores"


def kept(row: Row, options: argparse.Namespace) -> Row:
    """Write a row to the file at once: this program may be ended before its end."""
    with options.rows.open("a") as file:
        file.write(json.dumps(row._asdict()) + "\n")
    rate = row.of / row.for_all
    print(f"{row.work}, {row.how}, {row.workers}: {row.images} images in {row.seconds:.1f} s, {rate:.1f}/s", flush=True)
    draw(read(options.rows), options.picture)
    return row


def read(file: Path) -> list[Row]:
    """Return the last row of each measurement."""
    rows = [Row(**json.loads(line)) for line in file.read_text().splitlines()]
    return list({row[:3]: row for row in rows}.values())


def overhead(pairs: int, options: argparse.Namespace) -> list[str]:
    """Run without a cluster and with one of as many workers as cores in turn, and return what is wrong."""
    wrong = []
    with workers(usable_cores()) as cluster:
        for name in options.work:
            WORK[name](options.images, options.precision, cluster)  # starts the processes
            ratios: dict[str, list[float]] = {"time": [], "processor time": []}
            for _ in range(pairs):
                plain, spread_out = (_costs(WORK[name], options, on) for on in (None, cluster))
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
    seconds, processor = time.perf_counter() - started, _processor_seconds() - before
    print(f"{'cluster' if cluster else 'plain'}: {seconds:.1f} s, {processor:.1f} s of processors", flush=True)
    return seconds, processor


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
        digest = WORK[row.work](row.images, options.precision, cluster)
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


def speedups(rows: list[Row]) -> list[tuple[Row, float]]:
    """Return how many times as fast each is as the least number of workers is for one worker, in the order of both."""
    found = []
    for row in sorted(rows, key=lambda row: (row.work, row.how, row.workers)):
        least = min((each for each in rows if each[:2] == row[:2]), key=lambda each: each.workers)
        found.append((row, least.for_all / least.of * least.workers / (row.for_all / row.of)))
    return found


def draw(rows: list[Row], path: Path | None) -> None:
    from matplotlib.figure import Figure

    if path is None:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes, counts = figure.subplots(), sorted({row.workers for row in rows if row.how != "alone"})
    axes.plot(counts, counts, color="grey", linestyle=":", label="linear")
    for number, name in enumerate(WORK):
        for how, line, told in (("cluster", "o-", "on a cluster"), ("processes", "x--", "in plain processes")):
            points = [(row.workers, times) for row, times in speedups(rows) if (row.work, row.how) == (name, how)]
            if points:
                axes.plot(*zip(*points, strict=True), line, color=f"C{number}", label=f"{name}, {told}")
    axes.set(xlabel="workers", ylabel="times as fast as one", xscale="log", yscale="log", xticks=counts, yticks=counts)
    axes.set_xticklabels(map(str, counts))
    axes.set_yticklabels(map(str, counts))
    axes.legend()
    figure.savefig(path, dpi=150)


def table(rows: list[Row]) -> str:
    """Write what each number of workers reaches of linear, and of what as many plain processes do."""
    ceilings = {(row.work, row.workers): row.of / row.for_all for row in rows if row.how == "processes"}
    lines: list[list[Any]] = []
    for row, times in speedups(rows):
        rate = row.of / row.for_all
        ceiling = ceilings.get((row.work, row.workers), 0) if row.how == "cluster" else 0
        shares = f"{times / row.workers:.0%}" if row.how != "alone" else "", f"{rate / ceiling:.0%}" if ceiling else ""
        lines.append([row.work, row.how, row.workers, row.images, f"{row.seconds:.1f}", f"{rate:.0f}", *shares])
    titles = ["work", "how", "workers", "images done", "seconds", "images/s", "of linear", "of plain processes"]
    return str(tabulate(lines, titles, tablefmt="github"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="make the project there, or take the one there")
    parser.add_argument("--work", nargs="+", choices=tuple(WORK), default=list(WORK))
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--workers", type=int, nargs="*", default=[16, 1, 8, 4], help="in the order of measuring")
    parser.add_argument(
        "--share", type=float, default=1, help="of its images, for all but the largest number of workers"
    )
    parser.add_argument("--seconds", type=float, default=8, help="for plain processes; 0: leave them out")
    parser.add_argument("--precision", default=PRECISION)
    parser.add_argument("--alone", action="store_true", help="also without a cluster, on all cores")
    parser.add_argument("--pairs", type=int, default=0, help="of a run without a cluster and one with it")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=Path("cluster.jsonl"), help="a JSON line for each measurement")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    options.rows, options.picture = options.rows.absolute(), options.picture and options.picture.absolute()
    wrong = []
    if options.make:
        make_project(options.make)
    for count in options.workers:
        with workers(count) as cluster:
            rows = [kept(on_cluster(name, count, options, cluster), options) for name in options.work]
            if options.kills and count == max(options.workers):
                found = killing(cluster, rows, options)
                same = sum(found[f"{row.work} {row.digest}"] for row in rows)
                print(f"{found.total()} runs with a kill, {same} with the same bytes: {dict(found)}", flush=True)
                wrong += ["after kills, bytes differ"] if same < found.total() else []
        for name in options.work if options.seconds else ():
            kept(in_processes(name, count, options), options)
    for name in options.work if options.alone else ():
        kept(alone(name, options), options)
    if options.pairs:
        wrong += overhead(options.pairs, options)
    rows = read(options.rows)
    print(table(rows))
    for row, times in speedups(rows):
        if row.how == "cluster" and times < LEAST * row.workers:
            wrong.append(f"{row.work} with {row.workers} workers reaches {times / row.workers:.0%} of linear")
    for name in options.work:
        if len({row.digest for row in rows if row.work == name and row.how == "cluster"}) > 1:
            wrong.append(f"{name} gives other bytes with another number of workers")
    print("\n".join(wrong), file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
