"""`enginewright cure`: say that an engine is right, or find what cures it, with its price."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from enginewright.cli.arguments import add_engine, number_above_zero
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import CURES
from enginewright.core.params.all import Params
from enginewright.core.params.build import BuildParams
from enginewright.core.text import suggestion
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet, checked_feeds
from enginewright.engine.machine import require_fits
from enginewright.engine.record import EngineRecord, read_engine, read_refusal, require_made_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.validate import spot_batches
from enginewright.precision.cure import CURE
from enginewright.precision.find_cure import Trials, find_cure
from enginewright.tasks.choose import task_of

EXAMPLES = """\
examples:
  enginewright cure artifacts/engines/int8
  enginewright cure artifacts/engines/bf16 --seconds 60

Compares the engine with its own graph, at the smallest batch, the largest and
one between. If they differ by more than precisions.P.thresholds.relative_error,
it builds the graph in other ways, until the engine is right: spelled otherwise,
then with the fewest nodes in high precision. What it finds is raced, and goes to
cures/P.json: commit it, and run `dvc repro`. It holds for this version of the
compiler on this device. Exits 0, or 1 if nothing cures the engine."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    seconds = "how long to build, 300 if not given"
    command.add_argument("--seconds", type=number_above_zero, default=300, metavar="SECONDS", help=seconds)


def run(chosen: Namespace) -> int:
    """Write the cure, and print it as a sentence."""
    folder, params = chosen.engine, Params.read()
    refusal = read_refusal(folder)
    record = None if refusal and refusal.failed else read_engine(folder)
    precision = record.precision if record else folder.name
    if precision not in params.precisions:
        raise EnginewrightError(f"params.yaml makes no '{precision}'{suggestion(precision, params.precisions)}")
    artifacts, kept_in = folder.absolute().parents[1], CURES / f"{precision}.json"
    converted = artifacts / "converted" / precision
    graph, samples = converted / "model.onnx", SampleSet.open(artifacts / "samples" / "validation")
    trials = trials_for(record, graph, samples, params, chosen.seconds)
    if record:
        require_fits(record.target, trials.machine, folder)
        require_made_of(record, precision, graph)
    if (converted / CURE).exists():
        if record and trials.error_of(folder, graph) <= trials.limit:
            print(f"{folder} is right, as {kept_in} cures it")
            return 0
        raise EnginewrightError(f"{folder} is wrong in spite of {kept_in}: delete that file, and run `dvc repro` first")
    cure = find_cure(precision, folder if record else None, graph, trials, params.benchmark)
    if cure is None:
        print(f"{folder} is right: it differs from its graph by {trials.limit:g} at most, as {precision} may")
        return 0
    cure.write(kept_in)
    print(f"{precision}: {cure.in_words()}\n{kept_in} has it: commit it, and run `dvc repro`")
    return 0


def trials_for(record: EngineRecord | None, graph: Path, samples: SampleSet, params: Params, seconds: float) -> Trials:
    """Return trials as the engine was built, or as params.yaml says where the compiler refused it."""
    known, how, build = samples.manifest, params.model, record.build if record else params.build
    task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
    return Trials(
        describe_machine(record.target.runtime if record else params.runtime),
        build,
        params.inference,
        feeds_for(samples, graph, build),
        params.precisions[graph.parent.name].thresholds.relative_error,  # type: ignore[index]
        seconds,
        task.comparable,
    )


def feeds_for(samples: SampleSet, graph: Path, build: BuildParams) -> list[Feeds]:
    """Return samples, or else noise, first of the size that the engine is tuned for, last of the smallest."""
    profile = build.profile
    batches = [profile.batch.opt, *reversed(spot_batches(profile.batch))]
    if not len(samples):
        interface = read_blueprint(graph, build).interface
        return [interface.noise(profile.at("opt") | {"batch": batch}, seed=0) for batch in batches]
    tuned, *others = [samples.tuned(profile).cycled(batches[0]), *map(samples.cycled, batches[1:])]
    return [tuned, *checked_feeds(samples, profile)[1:], *others]
