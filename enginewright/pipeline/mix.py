"""Mix int8 and float precisions, part by part, by the times of their layers; race what looks fast."""

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.files import scratch_folder
from enginewright.core.params.all import Params
from enginewright.core.user_files import user_plugins
from enginewright.data.sample_set import TOKENIZER, SampleSet
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import Machine, Target
from enginewright.engine.record import read_engine
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.pixels import take_pixels
from enginewright.measure.agreement import Judge
from enginewright.measure.timing import whole_machine
from enginewright.precision import in_dialect, mixing
from enginewright.precision.checks import Checks
from enginewright.precision.dialect import Dialect
from enginewright.precision.records import SEARCH, Mix
from enginewright.targets.ray_cluster import whole_node
from enginewright.tasks.choose import task_of


class MixPaths(NamedTuple):
    simplified: Path
    calibrated: Path
    rescued: Path
    converted: Path
    engines: Path
    calibration: Path
    dialect: Path
    boxes: Path
    target: Path
    machine: Path
    plugins: Path
    traces: Path
    mixed: Path


def mix(params: Params, precision: PrecisionName, paths: MixPaths) -> None:
    """Write the answer, and all that it rests on. `converted` and `engines` have a folder for each precision."""
    asked, keep, how, build = params.mix[precision], params.precisions["int8"].keep, params.model, params.build
    samples, dialect = SampleSet.open(paths.calibration), Dialect.read(paths.dialect)
    in_graph, fed = BoxesInGraph.read(paths.boxes), samples.fed_to(build)
    # What has shaped the int8 graph, so that its parts in a mix are its own.
    search = paths.converted / "int8" / SEARCH
    rescue = paths.rescued if search.exists() else None
    given = in_dialect.open_rescued(paths.simplified, paths.calibrated, rescue, samples, dialect, keep)
    given = in_dialect.spare_searched(given, search, paths.rescued) if search.exists() else given
    types = in_dialect.types_to_mix(asked.floating, given.keep, dialect)  # the first two have engines; a third is fp32
    user_plugins(build.tensorrt.plugins, paths.plugins)
    if not len(samples):
        raise EnginewrightError(f"mix.{precision} checks mixes on calibration samples, and samples.calibration is 0")
    for engine in (read_engine(paths.engines / name) for name in types[:2]):
        if not engine.runs_its_precision:
            why = f"{engine.precision} ran as {engine.ran_as} here, and only what the machine executes can be mixed"
            raise EnginewrightError(f"mix.{precision}: {why}: set floating to another precision")
    this, known = Machine.read(paths.machine), samples.manifest
    bench = mixing.Bench(this, params.inference.on(this.cores), samples.tuned(build), build.profile.batch.opt)
    task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
    tokenizer = samples.folder / TOKENIZER if known.text else None
    compiled_for, example = Target.read(paths.target), fed.cycled(build.profile.batch.min)

    def finished(graph: onnx.ModelProto) -> onnx.ModelProto:
        return take_pixels(choose_in_graph(graph, in_graph), known.preprocessing, build.pixels)

    def build_mix(graph: Path, engine: Path) -> None:
        described = DescribedGraph(precision, graph, known, how.scores, how.boxes, tokenizer, example)
        build_engine(described, compiled_for, build, engine)

    with scratch_folder() as folder:
        source = in_dialect.for_compiler("int8", given, folder)
        graph = load_graph(source.graph)
        parts = mixing.parts_of(graph, source)
        elsewhere = (
            mixing.read_traces(asked.traces, types, precision, parts.places, paths.traces, bench)
            if asked.traces
            else None
        )
        types = tuple(elsewhere.times) if elsewhere else types
        limits = params.precisions[precision].thresholds
        checks = Checks(finished(graph), fed, Judge(task, samples.truth, limits))
        maker = mixing.CandidateMaker(source, parts, finished, checks, build_mix)
        made = [
            maker.check(parts.all_in(name), paths.converted / name / "model.onnx", paths.engines / name)
            for name in types[:2]
        ]
        if "fp32" in types[2:]:
            exact = load_graph(paths.simplified / "model.onnx")
            whole = in_dialect.rewritten(exact, dialect, "fp32") or exact
            made.append(maker.build_graph(whole, parts.all_in("fp32"), folder / "fp32"))
        pure = {name: each.engine for name, each in zip(types, made, strict=True)}
        with nullcontext() if elsewhere else whole_node(f"mix, {precision}", params.cluster):
            traced = elsewhere or mixing.trace_in_turns(precision, pure, parts.places, bench)
        for number, assignment in enumerate(mixing.mixes_worth_trying(traced.medians)):
            made.append(maker.make(assignment, folder / str(number)))
        candidates = [each.engine for each in made]
        with whole_node(f"mix, {precision}", params.cluster), whole_machine(f"mix, {precision}"):
            races = None if asked.traces else mixing.Races(candidates, bench)
            if races and len(made) > len(types):
                layers = mixing.layers_in_turns(candidates, bench)
            else:  # nothing is traced anew where there is no mix
                layers = [traced.of(each.assignment) for each in made]
            choice = mixing.choose(precision, types, made, layers, races, asked.seconds)
    keeps = {"int8": source.keep, "fp32": in_dialect.NOTHING, asked.floating: params.precisions[asked.floating].keep}
    answer = Mix(
        precision=precision,
        types=tuple(traced.times),
        machine=traced.machine.in_words(),
        traces=asked.traces,
        batch=bench.batch,
        calibration=source.ranges.cache_sha256,
        model=source.ranges.model_sha256,
        blocks=parts.timed(traced.medians),
        keep=keeps[choice.made_as],
        is_searched=search.exists(),
        spared=source.spared,
        floating=parts.floating(choice.taken) if choice.taken else {},
        **dict(choice),
    )
    answer.write(paths.mixed)
    print(answer.in_words())
