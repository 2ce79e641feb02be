"""How often ratios to PyTorch, alone, make `enginery compare` cry wolf, and which slowdowns they show.

Each run is a process of its own that races the int8 engine, the same engine with extra work, and PyTorch, with the
seconds and batch sizes of params.yaml. Then every run is compared with every other: the engine with itself, and the
engine with the slowed one. `python benchmarks/alarm_ratios.py 40` after `dvc repro`, on a machine that does nothing
else; it exits 1 if more than 1 in 100 comparisons is a false alarm. `--keep FOLDER` keeps the runs there, and goes on
with those that it finds.
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

from enginery.accuracy.records import Validation
from enginery.core.params.all import Params
from enginery.data.sample_set import SampleSet
from enginery.engine.engine import Engine
from enginery.engine.machine import Machine
from enginery.model.checkpoint import load_model
from enginery.regression.comparison import Outcome, best_pace, compare_runs, conclusion
from enginery.regression.measurements import Measured, Measurements
from enginery.speed.benchmark import compare, race_contenders
from enginery.speed.contenders import pytorch_contender
from enginery.speed.contention import Company
from enginery.speed.machine_pace import pace_of
from enginery.speed.records import ENGINE, SAME_PACE, Benchmark, Latency
from enginery.speed.timing import Timings, time_call

PRECISION, BASELINE, SLOWED = "int8", "eager", "slowed"
SLOWDOWN, CALIBRATIONS = 0.05, 3
PRECISIONS_IN_A_RUN = 4  # a comparison of the default run holds four precisions to account at once
CONFIDENCE = 1 - (1 - 0.99) / PRECISIONS_IN_A_RUN
MOST_FALSE, FEWEST_FOUND = 0.01, 0.95
Kept = TypeVar("Kept")  # what a script makes of a run's report
CALLED = (Outcome.REGRESSION, Outcome.IMPROVEMENT, Outcome.NO_CHANGE)


def work(times: int) -> None:
    """Real work, of which twice as much takes twice as long."""
    numbers = np.zeros(1000, np.float32)
    for _ in range(times):
        np.add(numbers, 1, out=numbers)


def open_engine(here: Machine) -> Engine:
    inference = Params.read().inference.model_copy(update={"threads": here.cores})
    return open_engine(Path("artifacts/engines") / PRECISION, here, inference)


def work_for_slowdown(scratch: Path) -> dict[int, int]:
    """By batch size, how much extra work takes 5 % of the engine's time: from its time alone, then from races."""
    here, samples = Machine.read(Path("artifacts/machine.json")), SampleSet.open(Path("artifacts/samples/validation"))
    unit = median(time_call(lambda: work(1000)).seconds for _ in range(50)) / 1000
    found = {}
    with open_engine(here) as engine:
        for batch in Params.read().benchmark.batches:
            call = engine.bind(samples.cycled(batch))
            seconds = median(time_call(call).seconds for _ in range(200))
            found[batch] = round(SLOWDOWN * seconds / unit)
    slowed_by = np.mean([_slowed_by(found, scratch) for _ in range(CALIBRATIONS)], axis=0)
    return {batch: round(times * SLOWDOWN / by) for (batch, times), by in zip(found.items(), slowed_by, strict=True)}


def _slowed_by(extra: dict[int, int], scratch: Path) -> np.ndarray:
    make_run(__file__, extra, scratch)
    took = {name: logs(measured) for name, measured in read(scratch).items()}
    scratch.unlink()
    return took[ENGINE] - took[SLOWED]


def make_run(script: str, extra: dict[int, int], report: Path) -> None:
    command = [sys.executable, script, "1", "--keep", str(report), "--one", json.dumps(extra)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(extra: dict[int, int], report: Path) -> None:
    """One process: what `stages/benchmark.py` measures of latency, for the engine and for the slowed one."""
    params, here = Params.read().benchmark, Machine.read(Path("artifacts/machine.json"))
    weights, samples = Path("artifacts/weights"), SampleSet.open(Path("artifacts/samples/validation"))
    torch.set_num_threads(here.cores)
    model = load_model(weights)
    with open_engine(here) as engine:

        def slowed(feeds):
            call, times = engine.bind(feeds), extra[len(next(iter(feeds.values())))]
            return lambda: (call(), work(times))

        contenders = {
            ENGINE: engine.bind,
            SLOWED: slowed,
            BASELINE: partial(pytorch_contender, model, BASELINE, here.device, True),
        }
        company = Company()
        race = race_contenders(contenders, samples, params, pace_of(here.device, here.cores), report.name, [company])
    rng = np.random.default_rng(params.seed)
    found = {
        name: Benchmark(
            precision=PRECISION,
            threads=here.cores,
            cuda_graph=False,
            confidence=params.confidence,
            latencies=tuple(as_the_engine(latency, name) for latency in race.latencies),
            ratios=tuple(
                compare(as_engine(timings, name), BASELINE, batch, params.confidence, rng)
                for batch, timings in race.counted.items()
                if timings.rounds
            ),
            pace=race.pace,
            throughput=(),
            contention=company.taken,
            peak_memory={},
            gpu=None,
        ).model_dump(mode="json")
        for name in (ENGINE, SLOWED)
    }
    report.write_text(json.dumps(found))


def as_the_engine(latency: Latency, name: str) -> Latency:
    """What is looked at for scatter are the timings of the engine and of the baseline, by these names."""
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
                Measured(
                    precision=PRECISION,
                    engine_bytes=0,
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
    """In a run of the pipeline the other precisions tell what the machine's best pace is, here the other runs."""
    best = best_pace(*(found[ENGINE] for found in runs))
    paces = [found[ENGINE].precisions[0].benchmark.pace.microseconds for found in runs]
    return [found for found, pace in zip(runs, paces, strict=True) if pace is not None and pace <= SAME_PACE * best]


def print_runs(runs: list[dict[str, Measurements]]) -> None:
    print("| batch | runs at the best pace | times eager, median | from run to run (standard deviation) | slowed by |")
    print("|---|---|---|---|---|")
    best = at_best_pace(runs)
    plain, slowed = (np.array([logs(found[name]) for found in best]) for name in (ENGINE, SLOWED))
    batches = [ratio.batch for ratio in best[0][ENGINE].precisions[0].benchmark.ratios]
    for place, batch in enumerate(batches):
        print(
            f"| {batch} | {len(best)} of {len(runs)} | {np.exp(median(plain[:, place])):.2f} "
            f"| {pstdev(plain[:, place]):.2%} | {median(plain[:, place] - slowed[:, place]):.1%} |"
        )
    print(f"| all together | | | {pstdev(plain.mean(axis=1)):.2%} | {median((plain - slowed).mean(axis=1)):.1%} |")


def print_verdicts(runs: list[dict[str, Measurements]]) -> bool:
    """Every run with every other. What counts is the best pace; the others `compare` mostly refuses."""
    print("\n| the later run is | of runs | comparisons | not comparable | regression | improvement | no change |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for which, some in {"at the best pace": at_best_pace(runs), "all": runs}.items():
        for name, later in {"the same engine": ENGINE, "slowed by 5 %": SLOWED}.items():
            found[which, later] = verdicts = verdicts_of(some, later)
            counts = [verdicts.total(), verdicts[Outcome.NOT_COMPARABLE], *(verdicts[outcome] for outcome in CALLED)]
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
    script: str, about: str, run: Callable[[dict[int, int], Path], None], read: Callable[[Path], Kept]
) -> list[Kept]:
    """What the command line asks for: so many runs, each made by `run` in a process of its own, and read again."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("runs", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--one", type=json.loads, help="for itself: the extra work of the one run to make")
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
        sys.exit("not what docs/measurements.md promises")


if __name__ == "__main__":
    main()
