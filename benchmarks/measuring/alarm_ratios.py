"""Count how often `enginewright compare` raises a false alarm by ratios to PyTorch, and which slowdowns it finds.

Each run is a separate process that races the int8 engine, the same engine with extra work, and PyTorch, with the
seconds and batch sizes of params.yaml. Then every run is compared with every other: the engine with itself, and the
engine with the slowed one. Run `python benchmarks/measuring/alarm_ratios.py 40` after `dvc repro`, on a machine that
does nothing else. It exits 1 if more than 1 in 100 comparisons is a false alarm. `--keep FOLDER` keeps the runs in a
folder, and uses those that are there already.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from statistics import median, pstdev
from typing import TypeVar

import numpy as np
import torch

from enginewright.core.params.all import Params
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import Engine, open_engine
from enginewright.engine.machine import Machine
from enginewright.measure.benchmark import race_contenders, ratio_to
from enginewright.measure.comparison import best_pace, compare_runs, conclusion
from enginewright.measure.contenders import bind_pytorch, pace_meter
from enginewright.measure.records import (
    ENGINE,
    SAME_PACE,
    Benchmark,
    Latency,
    Measurement,
    Measurements,
    Outcome,
    Validation,
)
from enginewright.measure.timing import Contender, ContentionWatch, Timings, time_call
from enginewright.model.checkpoint import load_model

PRECISION, BASELINE, SLOWED = "int8", "eager", "slowed"
SLOWDOWN, CALIBRATIONS = 0.05, 3
PRECISIONS_IN_A_RUN = 4  # a comparison of default runs has four precisions, and its confidence holds for all of them
CONFIDENCE = 1 - (1 - 0.99) / PRECISIONS_IN_A_RUN
MOST_FALSE, FEWEST_FOUND = 0.01, 0.95
Report = TypeVar("Report")  # what a script reads from a run's file
COMPARABLE = (Outcome.REGRESSION, Outcome.IMPROVEMENT, Outcome.NO_CHANGE)


def work(times: int) -> None:
    """Do work of which twice as much takes twice as long."""
    numbers = np.zeros(1000, np.float32)
    for _ in range(times):
        np.add(numbers, 1, out=numbers)


def one_after_the_other(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


def open_int8_engine(here: Machine) -> Engine:
    inference = Params.read().inference.model_copy(update={"threads": here.cores})
    return open_engine(Path("artifacts/engines") / PRECISION, here, inference)


def work_for_slowdown(scratch: Path) -> dict[int, int]:
    """Return the extra work that takes 5 % of the engine's time, by batch size. Races correct a first estimate."""
    here, samples = Machine.read(Path("artifacts/machine.json")), SampleSet.open(Path("artifacts/samples/validation"))
    unit = median(time_call(lambda: work(1000)).seconds for _ in range(50)) / 1000
    found = {}
    with open_int8_engine(here) as engine:
        for batch in Params.read().benchmark.batches:
            call = engine.bind(samples.fed_to(engine.record.build).cycled(batch))
            seconds = median(time_call(call).seconds for _ in range(200))
            found[batch] = round(SLOWDOWN * seconds / unit)
    slowdowns = np.mean([_slowdown_in_a_race(found, scratch) for _ in range(CALIBRATIONS)], axis=0)
    return {batch: round(times * SLOWDOWN / by) for (batch, times), by in zip(found.items(), slowdowns, strict=True)}


def _slowdown_in_a_race(extra: dict[int, int], scratch: Path) -> np.ndarray:
    make_run(__file__, extra, scratch)
    found = {name: logs(measured) for name, measured in read(scratch).items()}
    scratch.unlink()
    difference: np.ndarray = found[ENGINE] - found[SLOWED]
    return difference


def make_run(script: str, extra: dict[int, int], report: Path) -> None:
    command = [sys.executable, script, "1", "--keep", str(report), "--one", json.dumps(extra)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(extra: dict[int, int], report: Path) -> None:
    """Measure latencies as the stage benchmark does, of the engine and of the slowed one."""
    params, here = Params.read().benchmark, Machine.read(Path("artifacts/machine.json"))
    weights, samples = Path("artifacts/weights"), SampleSet.open(Path("artifacts/samples/validation"))
    torch.set_num_threads(here.cores)
    model = load_model(weights)
    with open_int8_engine(here) as engine:

        def slowed(feeds: Feeds) -> Contender:
            call, times = engine.bind(feeds), extra[len(next(iter(feeds.values())))]
            return partial(one_after_the_other, call, partial(work, times))

        contenders: dict[str, Callable[[Feeds], Contender]] = {
            ENGINE: engine.bind,
            SLOWED: slowed,
            BASELINE: bind_pytorch(model, BASELINE, engine.record),
        }
        watch = ContentionWatch()
        pace = pace_meter(here.device, here.cores)
        race = race_contenders(contenders, samples.fed_to(engine.record.build), params, pace, report.name, [watch])
    rng = np.random.default_rng(params.seed)
    found = {
        name: Benchmark(
            precision=PRECISION,
            threads=here.cores,
            cuda_graph=False,
            confidence=params.confidence,
            latencies=tuple(rename_contender(latency, name) for latency in race.latencies),
            ratios=tuple(
                ratio_to(as_engine(timings, name), BASELINE, batch, params.confidence, rng)
                for batch, timings in race.counted.items()
                if timings.rounds
            ),
            pace=race.pace,
            throughput=(),
            contention=watch.contention,
            peak_memory={},
            isolated_compute={},
            gpu=None,
            pytorch=torch.__version__,
        ).model_dump(mode="json")
        for name in (ENGINE, SLOWED)
    }
    report.write_text(json.dumps(found))


def rename_contender(latency: Latency, name: str) -> Latency:
    """Rename one contender to the engine: the noise limits look for the engine and the baseline by their names."""
    names = {ENGINE: f"not {name}"} | {name: ENGINE}
    return latency.model_copy(update={"contender": names.get(latency.contender, latency.contender)})


def as_engine(timings: Timings, name: str) -> Timings:
    return Timings([each._replace(turns={**each.turns, ENGINE: each.turns[name]}) for each in timings.rounds])


def read(report: Path) -> dict[str, Measurements]:
    validation = Validation.read(Path(f"reports/validation/{PRECISION}.json"))
    return {
        name: Measurements(
            machine=Machine.read(Path("artifacts/machine.json")),
            precisions=(
                Measurement(
                    precision=PRECISION,
                    engine_bytes=0,
                    files={},
                    executed_as_asked=1,
                    validation=validation,
                    benchmark=Benchmark.model_validate(found),
                ),
            ),
        )
        for name, found in json.loads(report.read_text()).items()
    }


def logs(measured: Measurements) -> np.ndarray:
    return np.log([ratio.median for ratio in measured.precisions[0].benchmark.ratios])


def at_best_pace(runs: list[dict[str, Measurements]]) -> list[dict[str, Measurements]]:
    """Return the runs at the best machine pace of all runs. The pipeline compares with its other precisions instead."""
    best = best_pace(*(found[ENGINE] for found in runs))
    paces = [found[ENGINE].precisions[0].benchmark.pace.microseconds for found in runs]
    return [found for found, pace in zip(runs, paces, strict=True) if pace is not None and pace <= SAME_PACE * best]


def print_runs(runs: list[dict[str, Measurements]]) -> None:
    print("| batch | runs at the best pace | times eager, median | from run to run (standard deviation) | slowed by |")
    print("|---|---|---|---|---|")
    best = at_best_pace(runs)
    plain, slowed = (np.array([logs(found[name]) for found in best]) for name in (ENGINE, SLOWED))
    batches = [ratio.batch for ratio in best[0][ENGINE].precisions[0].benchmark.ratios]
    for column, batch in enumerate(batches):
        print(
            f"| {batch} | {len(best)} of {len(runs)} | {np.exp(median(plain[:, column])):.2f} "
            f"| {pstdev(plain[:, column]):.2%} | {median(plain[:, column] - slowed[:, column]):.1%} |"
        )
    print(f"| all together | | | {pstdev(plain.mean(axis=1)):.2%} | {median((plain - slowed).mean(axis=1)):.1%} |")


def print_verdicts(runs: list[dict[str, Measurements]]) -> bool:
    """Compare every run with every other. Runs at the best pace decide; most of the others are not comparable."""
    print("\n| the later run is | of runs | comparisons | not comparable | regression | improvement | no change |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for which, some in {"at the best pace": at_best_pace(runs), "all": runs}.items():
        for name, later in {"the same engine": ENGINE, "slowed by 5 %": SLOWED}.items():
            found[which, later] = verdicts = verdicts_of(some, later)
            counts = [verdicts.total(), *(verdicts[outcome] for outcome in (Outcome.NOT_COMPARABLE, *COMPARABLE))]
            print(f"| {name} | {which} | {' | '.join(map(str, counts))} |")
    false = share_of(found["at the best pace", ENGINE], Outcome.REGRESSION, Outcome.IMPROVEMENT)
    print(f"\nof all comparisons, at the best pace: {false:.1%} false alarms")
    return false <= MOST_FALSE


def share_of(verdicts: Counter[Outcome], *wanted: Outcome) -> float:
    return sum(verdicts[outcome] for outcome in wanted) / max(1, verdicts.total())


def verdicts_of(runs: list[dict[str, Measurements]], later: str) -> Counter[Outcome]:
    return Counter(
        conclusion(compare_runs(one[ENGINE], other[later], CONFIDENCE)) for one, other in permutations(runs, 2)
    )


def runs_of(
    script: str, about: str, run: Callable[[dict[int, int], Path], None], read: Callable[[Path], Report]
) -> list[Report]:
    """Make as many runs as the command line asks for, each by `run` in a separate process, and read their files."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("runs", type=int, help="how many runs to make")
    parser.add_argument("--keep", type=Path, help="a folder for the runs")
    parser.add_argument("--one", type=json.loads, help="internal: make one run with this extra work")
    chosen = parser.parse_args()
    if chosen.one:
        run({int(batch): times for batch, times in chosen.one.items()}, chosen.keep)
        sys.exit()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        settings = folder / "extra-work.json"
        if not settings.exists():
            settings.write_text(json.dumps(work_for_slowdown(folder / "calibration.json")))
        extra = json.loads(settings.read_text())
        reports = [folder / f"run-{number:03}.json" for number in range(chosen.runs)]
        for report in reports:
            if not report.exists():
                make_run(script, extra, report)
        return [read(report) for report in reports]


def main() -> None:
    runs = runs_of(__file__, __doc__, run, read)
    print_runs(runs)
    if not print_verdicts(runs):
        sys.exit("there are more false alarms than docs/explanation/measuring.md says")


if __name__ == "__main__":
    main()
