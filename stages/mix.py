"""Mix int8 and float precisions, part by part, by the times of their layers; race what looks fast."""

from contextlib import nullcontext
from pathlib import Path

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.core.params.model import BoxesParams, ModelParams
from enginewright.core.params.precisions import MixParams, PrecisionParams
from enginewright.core.user_files import user_plugins
from enginewright.data.sample_set import TOKENIZER, SampleSet
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import Machine, Target
from enginewright.engine.record import read_engine
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.onnx_file import load_graph
from enginewright.measure.timing import whole_machine
from enginewright.precision.dialect import Dialect
from enginewright.precision.in_dialect import NOTHING, Ingredients, rewritten, types_to_mix
from enginewright.precision.mixing.choice import Choice, choose
from enginewright.precision.mixing.race import Build, Maker, Races, for_compiler, is_searched, open_int8
from enginewright.precision.mixing.records import Mix, in_words, ways_worth_trying
from enginewright.precision.mixing.traces import (
    Here,
    Parts,
    Traces,
    layers_in_turns,
    layers_on_way,
    median_times,
    parts_of,
    read_traces,
    require_executed,
    trace_in_turns,
)
from enginewright.precision.search.checks import Checks
from enginewright.targets.ray_cluster import whole_node
from enginewright.tasks.choose import task_of


def mix(
    precision: str,
    simplified: Path,
    calibrated: Path,
    rescued: Path,
    converted: Path,
    engines: Path,
    calibration: Path,
    dialect: Path,
    boxes: Path,
    target: Path,
    machine: Path,
    plugins: Path,
    traces: Path,
    mixed: Path,
) -> None:
    """Write the answer, and all that it rests on. `converted` and `engines` have a folder for each precision."""
    params, keep, wanted = MixParams.read_for(precision), PrecisionParams.read_for("int8").keep, Dialect.read(dialect)
    build, samples, in_graph = BuildParams.read(), SampleSet.open(calibration), BoxesInGraph.read(boxes)
    types = types_to_mix(params.floating, keep, wanted)  # the first two have engines; a third one is fp32
    user_plugins(build.tensorrt.plugins, plugins)
    if not len(samples):
        raise EnginewrightError(f"mix.{precision} checks mixes on calibration samples, and samples.calibration is 0")
    for name in types[:2]:
        require_executed(read_engine(engines / name), precision)
    here = _here(Machine.read(machine), samples, build)
    given, spared = open_int8(converted / "int8", simplified, calibrated, rescued, samples)
    with scratch_folder() as folder:
        source = for_compiler(given, spared, samples, wanted, keep, folder)
        graph = load_graph(source.graph)
        parts = parts_of(graph, source)
        elsewhere = read_traces(params.traces, types, precision, parts.places, traces, here) if params.traces else None
        types = elsewhere.types if elsewhere else types
        checks = _checks(precision, choose_in_graph(graph, in_graph), samples)
        build_mix = _builder(precision, Target.read(target), build, samples)
        maker = Maker(source, parts, in_graph, checks, build_mix)
        made = [maker.check(parts.all_in(name), converted / name / "model.onnx", engines / name) for name in types[:2]]
        if "fp32" in types[2:]:
            exact = load_graph(simplified / "model.onnx")
            changed = rewritten(exact, wanted, "fp32")
            whole = exact if changed is None else changed
            made.append(maker.build_graph(whole, parts.all_in("fp32"), folder / "fp32"))
        pure = {name: each.engine for name, each in zip(types, made, strict=True)}
        with nullcontext() if elsewhere else whole_node(f"mix, {precision}"):
            traced = elsewhere or trace_in_turns(precision, pure, parts.places, here)
        for number, way in enumerate(ways_worth_trying(median_times(traced.times))):
            made.append(maker.make(way, folder / str(number)))
        candidates = [each.engine for each in made]
        with whole_node(f"mix, {precision}"), whole_machine(f"mix, {precision}"):
            races = None if params.traces else Races(candidates, here)
            if races and len(made) > len(types):
                layers = layers_in_turns(candidates, here)
            else:  # nothing is traced anew where there is no mix
                layers = [layers_on_way(each.way, traced.times) for each in made]
            choice = choose(precision, types, made, layers, races, params.seconds)
    answer = _answer(precision, params, here.batch, source, parts, traced, choice, is_searched(converted / "int8"))
    answer.write(mixed)
    print(in_words(answer))


def _here(machine: Machine, samples: SampleSet, build: BuildParams) -> Here:
    inference = InferenceParams.read().on(machine.cores)
    return Here(machine, inference, samples.tuned(build.profile), build.profile.batch.opt)


def _checks(precision: str, graph: onnx.ModelProto, samples: SampleSet) -> Checks:
    known, scores = samples.manifest, ModelParams.read().scores
    task = task_of(known.task, scores, known.class_names, BoxesParams.read(), known.preprocessing)
    return Checks(graph, samples, task, PrecisionParams.read_for(precision).thresholds)


def _builder(precision: str, target: Target, build: BuildParams, samples: SampleSet) -> Build:
    known, scores, boxes = samples.manifest, ModelParams.read().scores, BoxesParams.read()
    tokenizer = samples.folder / TOKENIZER if known.text else None
    example = samples.cycled(build.profile.batch.min)

    def build_mix(graph: Path, engine: Path) -> None:
        described = DescribedGraph(precision, graph, known, scores, boxes, tokenizer, example)
        build_engine(described, target, build, engine)

    return build_mix


def _answer(
    precision: str,
    params: MixParams,
    batch: int,
    source: Ingredients,
    parts: Parts,
    traced: Traces,
    choice: Choice,
    searched: bool,
) -> Mix:
    keep = {"int8": source.keep, "fp32": NOTHING, params.floating: PrecisionParams.read_for(params.floating).keep}
    return Mix(
        precision=precision,
        types=traced.types,
        machine=traced.machine.in_words(),
        traces=params.traces,
        batch=batch,
        calibration=source.ranges.cache_sha256,
        model=source.ranges.model_sha256,
        blocks=parts.timed(median_times(traced.times)),
        made_as=choice.made_as,
        keep=keep[choice.made_as],
        is_searched=searched,
        spared=tuple(source.spared),
        floating=parts.floating(choice.taken) if choice.taken else {},
        **choice._asdict(),
    )
