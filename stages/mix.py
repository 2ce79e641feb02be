"""Mix int8 and a float precision, part by part, by the times of their layers; race what looks fast."""

from pathlib import Path

import onnx

from enginery.cluster.ray_cluster import whole_node
from enginery.core.errors import EngineryError
from enginery.core.params.boxes import BoxesParams
from enginery.core.params.build import BuildParams
from enginery.core.params.inference import InferenceParams
from enginery.core.params.mix import MixParams
from enginery.core.params.model import ModelParams
from enginery.core.params.precisions import PrecisionParams
from enginery.core.scratch import scratch_folder
from enginery.core.user_files import user_plugins
from enginery.data.sample_set import TOKENIZER, SampleSet
from enginery.engine.build import build_engine
from enginery.engine.folder import read_engine
from enginery.engine.machine import Machine
from enginery.engine.target import Target
from enginery.graph.as_written import run_as_written
from enginery.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.mixing.blocks import blocks_of, places_of
from enginery.mixing.choice import FLOATING, INT8, Choice, choose
from enginery.mixing.in_words import in_words
from enginery.mixing.race import Races
from enginery.mixing.records import BlockTimes, Mix
from enginery.mixing.traces import median_times, read_traces, require_executed, trace_in_turns
from enginery.mixing.ways import Way, ways_worth_trying
from enginery.quantization.conversion import kept_nodes
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import Ingredients, rewritten
from enginery.quantization.mixed import quantize_beside, require_mixable
from enginery.quantization.modelopt import named_sizes
from enginery.quantization.placement import arithmetic_nodes
from enginery.quantization.rescue.records import digest_of, open_rescued
from enginery.quantization.structure import nodes_beyond_int8
from enginery.search.checks import Checks
from enginery.search.records import SEARCH, spared_layers
from enginery.speed.machine_lock import whole_machine
from enginery.tasks.choose import task_of


def mix(
    precision: str,
    simplified: Path,
    calibrated: Path,
    rescued: Path,
    quantized: Path,
    floating: Path,
    quantized_engine: Path,
    floating_engine: Path,
    calibration: Path,
    dialect: Path,
    boxes: Path,
    target: Path,
    machine: Path,
    plugins: Path,
    traces: Path,
    mixed: Path,
) -> None:
    """Write the answer, and all that it rests on. `quantized` and `floating` are the converted graphs of these two."""
    params, limits = MixParams.read_for(precision), PrecisionParams.read_for(precision).thresholds
    keep, wanted, here = PrecisionParams.read_for("int8").keep, Dialect.read(dialect), Machine.read(machine)
    build, inference = BuildParams.read(), InferenceParams.read().on(here.cores)
    samples, is_searched = SampleSet.open(calibration), (quantized / SEARCH).exists()
    # int8 is made of these, too, so that its parts in a mix are its own.
    source, ranges, rounded = open_rescued(simplified, calibrated, rescued if is_searched else None, samples)
    require_mixable(params.floating, keep, wanted)
    user_plugins(build.tensorrt.plugins, plugins)
    if not len(samples):
        raise EngineryError(f"mix.{precision} checks mixes on calibration samples, and samples.calibration is 0")
    for engine in (quantized_engine, floating_engine):
        require_executed(read_engine(engine), precision)
    plain = load_graph(source)
    graph, sizes = rewritten(plain, wanted, "int8") or plain, named_sizes(plain, samples.cycled(1))
    spared = spared_layers(quantized / SEARCH, ranges, digest_of(rescued)) if is_searched else ()
    beyond = {*nodes_beyond_int8(graph, ranges.amax), *kept_nodes(keep, graph), *spared}
    blocks = blocks_of(graph, arithmetic_nodes(graph, beyond))
    places, batch, timed = places_of(graph, blocks), build.profile.batch.opt, samples.tuned(build.profile)
    timed_on = here
    if params.traces:
        timed_on, times = read_traces(params.traces, params.floating, precision, places, traces, batch, here.runtime)
    else:
        with whole_node(f"mix, {precision}"), whole_machine(f"mix, {precision}"):
            times = trace_in_turns(quantized_engine, floating_engine, places, here, inference, timed)
    medians = median_times(times)
    known, scores, how = samples.manifest, ModelParams.read().scores, BoxesParams.read()
    task, in_graph = task_of(known.task, scores, known.class_names, how, known.preprocessing), BoxesInGraph.read(boxes)

    def whole(model: onnx.ModelProto) -> onnx.ModelProto:
        """Return it with what the stage convert adds to all graphs."""
        return choose_in_graph(model, in_graph) if in_graph.how else model

    checks = Checks(whole(graph), samples, task, limits)

    def names_in(way: Way) -> list[str]:
        return [name for number in way for name in blocks[number]]

    with scratch_folder() as folder:
        save_graph(graph, folder / "model.onnx")
        given = Ingredients(folder / "model.onnx", ranges, sizes, wanted, keep, spared, rounded)
        engines = {INT8: quantized_engine, FLOATING: floating_engine}

        def used_by(model: Path) -> float:
            return checks.check_run(run_as_written(model), 0, 0.0).used

        def made(number: int, way: Way) -> float:
            """Write a mix, and build it. Return what it takes of what the thresholds allow."""
            place = folder / str(number)
            place.mkdir()
            model, _ = quantize_beside(params.floating, names_in(way), given)
            save_graph(whole(model), place / "model.onnx")
            tokenizer = calibration / TOKENIZER if known.text else None
            what = place / "model.onnx", Target.read(target), build, known, place / "engine", scores, how, tokenizer
            build_engine(precision, *what)
            engines[number] = place / "engine"
            return used_by(place / "model.onnx")

        ways = ways_worth_trying(*medians)
        used = [used_by(quantized / "model.onnx"), used_by(floating / "model.onnx")]
        used += [made(number, way) for number, way in enumerate(ways, FLOATING + 1)]
        every = [(), tuple(range(len(blocks))), *ways]
        races = None if params.traces else Races(engines, here, inference, timed, batch)
        with whole_node(f"mix, {precision}"), whole_machine(f"mix, {precision}"):
            choice: Choice = choose(precision, params.floating, every, used, times, races, params.seconds)
    is_mixed = choice.mixed is not None and (choice.delivered is None or choice.delivered.low > 1)
    made_as = "int8" if is_mixed or choice.rival == "int8" else params.floating
    answer = Mix(
        precision=precision,
        beside=params.floating,
        machine=timed_on.in_words(),
        traces=params.traces,
        batch=batch,
        calibration=ranges.cache_sha256,
        model=ranges.model_sha256,
        blocks=tuple(
            BlockTimes(first=block[0], last=block[-1], in_int8=one, in_floating=other)
            for block, one, other in zip(blocks, *medians, strict=True)
        ),
        made_as=made_as,
        keep=keep if made_as == "int8" else PrecisionParams.read_for(params.floating).keep,
        is_searched=is_searched,
        spared=spared,
        floating=tuple(names_in(every[choice.mixed])) if is_mixed and choice.mixed is not None else (),
        **choice._asdict(),
    )
    answer.write(mixed)
    print(in_words(answer))
