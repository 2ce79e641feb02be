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
from enginery.quantization.cast import cast
from enginery.quantization.conversion import Conversion, require_kept_exist
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import quantize_in_dialect, rest_of, rewritten
from enginery.quantization.modelopt import named_sizes
from enginery.quantization.rescue.records import RESCUE, open_calibrated, open_rescued
from enginery.search.records import SEARCH, spared_layers


def convert(
    precision: str,
    simplified: Path,
    made_from: Path,
    calibrated: Path,
    rescued: Path,
    calibration: Path,
    dialect: Path,
    converted: Path,
) -> None:
    """Write model.onnx and convert.json, and copies of the rescue and the search that it followed."""
    keep, wanted = PrecisionParams.read_for(precision).keep, Dialect.read(dialect)
    source, samples = simplified / "model.onnx", SampleSet.open(calibration)
    if PRECISIONS[precision].is_quantized:
        is_searched = made_from != calibrated
        found = made_from / f"{precision}.json"
        given = (
            open_rescued(simplified, calibrated, rescued / precision, samples)
            if is_searched
            else open_calibrated(simplified, calibrated, samples)
        )
        source = given.graph
    graph = load_graph(source)
    require_kept_exist(keep, graph)
    sizes = named_sizes(graph, samples.cycled(1))
    with new_folder(converted) as unfinished:
        target = unfinished / "model.onnx"
        if (graph_for_compiler := rewritten(graph, wanted, precision)) is not None:
            graph = graph_for_compiler
            save_graph(graph, target)
        else:
            copy_graph(source, unfinished)
        if PRECISIONS[precision].is_quantized:
            spared: tuple[str, ...] = ()
            if is_searched:
                spared = spared_layers(found, given.ranges)
                shutil.copyfile(found, unfinished / SEARCH)  # both for the report
                shutil.copyfile(rescued / precision / RESCUE, unfinished / RESCUE)
            graph, high = quantize_in_dialect(
                precision, target, given.ranges, sizes, wanted, keep, spared, given.rounded
            )
            for why in dict.fromkeys(high.values()):
                names = [name for name, reason in high.items() if reason == why]
                stay = "stays" if len(names) == 1 else "stay"
                print(f"{precision}: {first_few(names)} {stay} in {rest_of(keep, wanted)}: {why}")
            save_graph(graph, target)
        elif precision != "fp32":
            graph = cast(target, precision, keep, sizes)
            save_graph(graph, target)
        record = Conversion(precision=precision, opset=opset_of(graph), nodes=count_nodes(graph))
        record.write(unfinished / "convert.json")
    print(f"{precision}: {sum(record.nodes.values())} nodes, opset {record.opset}")
