"""Convert the simplified graph to one precision: copy it for fp32, cast it for fp16 and bf16, else quantize it."""

import shutil
from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params.precisions import PrecisionParams
from enginery.core.precisions import PRECISIONS
from enginery.core.text import first_few
from enginery.data.sample_set import SampleSet
from enginery.graph.files import copy_graph
from enginery.graph.onnx_file import count_nodes, load_graph, opset_of, save_graph
from enginery.mixing.records import MIX, Mix
from enginery.quantization.calibration.provenance import Calibration, require_match
from enginery.quantization.cast import cast
from enginery.quantization.conversion import Conversion, require_kept_exist
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import quantize_in_dialect, rest_of, rewritten
from enginery.quantization.mixed import quantize_beside
from enginery.quantization.modelopt import named_sizes
from enginery.search.records import SEARCH, spared_layers


def convert(
    precision: str,
    simplified: Path,
    made_from: Path,
    calibrated: Path,
    calibration: Path,
    dialect: Path,
    converted: Path,
) -> None:
    """Write model.onnx and convert.json, and a copy of the search that it followed."""
    keep, wanted = PrecisionParams.read_for(precision).keep, Dialect.read(dialect)
    mix, made_as = None, precision
    if PRECISIONS[precision].is_mixed:
        found = made_from / f"{precision}.json"
        mix = Mix.read_for(found, Calibration.read(calibrated / "calibration.json"))
        keep, made_as = mix.keep, mix.made_as
    source, samples = simplified / "model.onnx", SampleSet.open(calibration)
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
        if mix:
            mix.write(unfinished / MIX)  # for the report
        if PRECISIONS[made_as].is_quantized:
            ranges = Calibration.read(calibrated / "calibration.json")
            require_match(ranges, calibrated / "calibration.cache", source, samples)
            spared: tuple[str, ...] = mix.spared if mix else ()
            if not mix and made_from != calibrated:
                found = made_from / f"{precision}.json"
                spared = spared_layers(found, ranges)
                shutil.copyfile(found, unfinished / SEARCH)  # for the report
            if mix and mix.floating:
                graph, high = quantize_beside(mix.beside, mix.floating, target, ranges, sizes, wanted, keep, spared)
            else:
                graph, high = quantize_in_dialect(made_as, target, ranges, sizes, wanted, keep, spared)
            for why in dict.fromkeys(high.values()):
                names = [name for name, reason in high.items() if reason == why]
                stay = "stays" if len(names) == 1 else "stay"
                print(f"{precision}: {first_few(names)} {stay} in {rest_of(keep, wanted)}: {why}")
            save_graph(graph, target)
        elif made_as != "fp32":
            graph = cast(target, made_as, keep, sizes)
            save_graph(graph, target)
        record = Conversion(precision=precision, opset=opset_of(graph), nodes=count_nodes(graph))
        record.write(unfinished / "convert.json")
    print(f"{precision}: {sum(record.nodes.values())} nodes, opset {record.opset}")
