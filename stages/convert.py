"""Convert the simplified graph to one precision: copy it for fp32, cast it for fp16 and bf16, else quantize it."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params.precisions import PrecisionParams
from enginery.core.precisions import PRECISIONS
from enginery.core.text import first_few
from enginery.data.sample_set import SampleSet
from enginery.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginery.graph.files import copy_graph
from enginery.graph.onnx_file import count_nodes, load_graph, opset_of, save_graph
from enginery.mixing.records import MIX, Mix
from enginery.quantization.cast import cast
from enginery.quantization.conversion import Conversion, require_kept_exist
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import quantize_in_dialect, rest_of, rewritten, write_blocks_in_dialect
from enginery.quantization.mixed import quantize_beside
from enginery.quantization.modelopt import named_sizes
from enginery.quantization.rescue.records import RESCUE, digest_of, open_rescued
from enginery.search.records import SEARCH, spared_layers


def convert(
    precision: str,
    simplified: Path,
    made_from: Path,
    calibrated: Path,
    rescued: Path,
    calibration: Path,
    dialect: Path,
    boxes: Path,
    converted: Path,
) -> None:
    """Write model.onnx and convert.json, and copies of the rescue and the search, or the mix, that it followed."""
    found, wanted, samples = made_from / f"{precision}.json", Dialect.read(dialect), SampleSet.open(calibration)
    mix = Mix.read(found) if PRECISIONS[precision].is_mixed else None
    made_as, keep = (mix.made_as, mix.keep) if mix else (precision, PrecisionParams.read_for(precision).keep)
    is_searched = mix.is_searched if mix else made_from not in (calibrated, simplified)
    rescue = rescued / made_as if is_searched else None
    facts, source, given, spared = PRECISIONS[made_as], simplified / "model.onnx", None, tuple[str, ...]()
    if facts.is_calibrated:
        given = open_rescued(simplified, calibrated, rescue, samples)
        source = given.graph
        if mix:
            spared = mix.spared_for(given.ranges)
        elif rescue:
            spared = spared_layers(found, given.ranges, digest_of(rescue))
    graph = load_graph(source)
    require_kept_exist(keep, graph)
    sizes = named_sizes(graph, samples.cycled(1))
    with new_folder(converted) as unfinished:
        target = unfinished / "model.onnx"
        if (graph_for_compiler := rewritten(graph, wanted, made_as)) is not None:
            graph = graph_for_compiler
            save_graph(graph, target)
        else:
            copy_graph(source, unfinished)
        if facts.block:
            ranges = given.ranges if given else None
            graph, in_blocks, stay = write_blocks_in_dialect(made_as, target, ranges, sizes, wanted, keep)
            products = len(in_blocks) + len(stay)
            print(f"{precision}: {len(in_blocks)} of {products} products with weights are in blocks of {facts.block}")
            _print_reasons(precision, stay, rest_of(keep, wanted))
            save_graph(graph, target)
        elif given:
            beside = mix and partial(quantize_beside, mix.beside, mix.floating)
            quantize = beside or partial(quantize_in_dialect, made_as)
            graph, high = quantize(target, given.ranges, sizes, wanted, keep, spared, given.rounded)
            _print_reasons(precision, high, rest_of(keep, wanted))
            save_graph(graph, target)
        elif made_as != "fp32":
            graph = cast(target, made_as, keep, sizes)
            save_graph(graph, target)
        if (in_graph := BoxesInGraph.read(boxes)).how:
            graph = choose_in_graph(graph, in_graph)
            save_graph(graph, target)
        if mix:
            shutil.copyfile(found, unfinished / MIX)  # like the next two, for the report
        elif rescue:
            shutil.copyfile(found, unfinished / SEARCH)
            shutil.copyfile(rescue / RESCUE, unfinished / RESCUE)
        record = Conversion(precision=precision, opset=opset_of(graph), nodes=count_nodes(graph))
        record.write(unfinished / "convert.json")
    print(f"{precision}: {sum(record.nodes.values())} nodes, opset {record.opset}")


def _print_reasons(precision: str, high: Mapping[str, str], rest: str) -> None:
    """Name the nodes that are not quantized, with the reason."""
    for why in dict.fromkeys(high.values()):
        names = [name for name, reason in high.items() if reason == why]
        print(f"{precision}: {first_few(names)} {'stays' if len(names) == 1 else 'stay'} in {rest}: {why}")
