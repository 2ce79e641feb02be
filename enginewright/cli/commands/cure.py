"""`enginewright cure`: say that an engine is right, or find what cures it, with its price."""

from argparse import ArgumentParser, Namespace

from enginewright.cli.arguments import add_engine, number_above_zero
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import CURES, scratch_folder
from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import require_fits
from enginewright.engine.record import read_engine, read_refusal, require_made_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.precision.cure import CURE, UNCURED, GraphChange
from enginewright.precision.find_cure import BuiltGraph, Trials, feeds_for, find_cure
from enginewright.tasks.choose import task_of

EXAMPLES = """\
examples:
  enginewright cure artifacts/engines/int8

Compares the engine with its own graph. If they differ by more than
relative_error in the precision's thresholds, it builds the graph in other
ways. All that cure it are raced, and go to cures/P.json, the fastest first:
commit it, and run `dvc repro`. Exits 0, or 1 if nothing cures it."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    seconds = "how long to build, 300 if not given"
    command.add_argument("--seconds", type=number_above_zero, default=300, metavar="SECONDS", help=seconds)
    most = "how many builds at most, 100 if not given"
    command.add_argument("--builds", type=number_above_zero, default=100, metavar="N", help=most)
    without = "build a cured engine without its cure, and say whether it is needed still; change nothing"
    command.add_argument("--without", action="store_true", help=without)


def run(chosen: Namespace) -> int:
    """Write the cure, and print it as a sentence. A compiler may also have refused the graph."""
    folder, params = chosen.engine, Params.read()
    refusal = read_refusal(folder)
    record = None if refusal and refusal.failed else read_engine(folder)
    precision = record.precision if record else folder.name
    if precision not in params.precisions:
        raise EnginewrightError(f"params.yaml makes no '{precision}': give an engine of this project")
    converted, kept_in = folder.absolute().parents[1] / "converted" / precision, CURES / f"{precision}.json"
    here, graph = describe_machine(record.target.runtime if record else params.runtime), converted / "model.onnx"
    if record:
        require_fits(record.target, here, folder)
        require_made_of(record, precision, graph)
    build = record.build if record and not chosen.without else params.build
    limit = params.precisions[precision].thresholds.relative_error
    samples = SampleSet.open(converted.parents[1] / "samples" / "validation")
    known, how = samples.manifest, params.model
    task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
    feeds = feeds_for(samples, read_blueprint(graph, build))
    trials = Trials(here, build, params.inference, task.comparable, feeds, limit, chosen.seconds, chosen.builds)
    if chosen.without:
        if not (converted / CURE).exists():
            raise EnginewrightError(f"{folder} has no cure: leave out --without to find one")
        with scratch_folder() as scratch:
            is_right = trials.attempt(load_graph(converted / UNCURED), GraphChange(), scratch)
        still = "is no longer needed: delete it, and run `dvc repro`" if is_right else "is needed still"
        print(f"{kept_in} {still}")
        return 0
    if (converted / CURE).exists() and not (record and trials.error_of(BuiltGraph(folder, graph)) <= limit):
        raise EnginewrightError(f"{folder} is wrong in spite of {kept_in}: delete that file, and run `dvc repro` first")
    cure = find_cure(precision, folder if record else None, graph, trials, params.benchmark)
    if cure:
        cure.write(kept_in)
        print(f"{precision}: {cure.in_words()}\n{kept_in} has it: commit it, and run `dvc repro`")
    else:
        print(f"{folder} is right: it differs from its graph by {limit:g} at most")
    return 0
