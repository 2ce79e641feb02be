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
from enginewright.engine.record import read_engine, read_refusal, require_made_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.validate import spot_batches
from enginewright.precision.cure import Trials, find_cure
from enginewright.precision.records import CURE
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
    precision = record.precision if record else refusal.precision
    if precision not in params.precisions:
        raise EnginewrightError(f"params.yaml makes no '{precision}'{suggestion(precision, params.precisions)}")
    artifacts = folder.absolute().parents[1]
    converted = artifacts / "converted" / precision
    graph = converted / "model.onnx"
    here = describe_machine(record.target.runtime if record else params.runtime)
    if record:
        require_fits(record.target, here, folder)
        require_made_of(record, precision, graph)
    build, how = record.build if record else params.build, params.model
    samples = SampleSet.open(artifacts / "samples" / "validation")
    known = samples.manifest
    task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
    limit = params.precisions[precision].thresholds.relative_error
    feeds = feeds_for(samples, graph, build)
    trials = Trials(here, build, params.inference, feeds, limit, chosen.seconds, task.comparable)
    if (converted / CURE).exists():
        if trials.error_of(folder, graph) <= limit:
            print(f"{folder} is right, as {CURES / precision}.json cures it")
            return 0
        raise EnginewrightError(
            f"{folder} is wrong, though {CURES / precision}.json cured it: delete that, and run `dvc repro` first"
        )
    cure = find_cure(precision, folder if record else None, graph, trials, params.benchmark)
    if cure is None:
        print(f"{folder} is right: it differs from its graph by less than {limit:g}")
        return 0
    cure.write(CURES / f"{precision}.json")
    print(f"{precision}: {cure.in_words()}\n{CURES / precision}.json has it: commit it, and run `dvc repro`")
    return 0


def feeds_for(samples: SampleSet, graph: Path, build: BuildParams) -> list[Feeds]:
    """Return samples, or else noise, first of the size that the engine is tuned for, last of the smallest."""
    profile = build.profile
    batches = [profile.batch.opt, *reversed(spot_batches(profile.batch))]
    if not len(samples):
        interface = read_blueprint(graph, build).interface
        return [interface.noise(profile.at("opt") | {"batch": batch}, seed=0) for batch in batches]
    tuned, *others = [samples.tuned(profile).cycled(batches[0]), *map(samples.cycled, batches[1:])]
    return [tuned, *checked_feeds(samples, profile)[1:], *others]
