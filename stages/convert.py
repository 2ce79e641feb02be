"""Convert the simplified graph to one precision: copy it for fp32, cast it for fp16 and bf16, else quantize it."""

import re
import shutil
from pathlib import Path

import onnx

from enginery.core.files import new_folder
from enginery.core.params.precisions import Keep, PrecisionParams
from enginery.core.precisions import PRECISIONS
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import count_nodes, load_graph, opset_of, save_graph
from enginery.graph.passes import apply_passes
from enginery.graph.passes.pad_before_pooling import PadBeforePooling
from enginery.graph.passes.spell_out_hard_swish import SpellOutHardSwish
from enginery.quantization.calibration.provenance import Calibration, require_match, require_tensors
from enginery.quantization.cast import cast
from enginery.quantization.conversion import Conversion, kept_nodes, require_kept_exist
from enginery.quantization.dialect import Dialect
from enginery.quantization.quantize import nodes_with_tiny_inputs, quantize, tensors_to_quantize
from enginery.quantization.structure import nodes_beyond_int8
from enginery.quantization.write_int8 import Range, tensors_in_int8, write_int8

REWRITES = {("tensorrt", "bf16"): SpellOutHardSwish, ("cpu", "int8"): PadBeforePooling}  # by compiler and precision
TINY_SCALE = "it cannot hold the scale of what the node reads"


def convert(
    precision: str, simplified: Path, made_from: Path, calibration: Path, dialect: Path, converted: Path
) -> None:
    """Write model.onnx and convert.json."""
    keep, wanted = PrecisionParams.read_for(precision).keep, Dialect.read(dialect)
    source, samples = simplified / "model.onnx", SampleSet.open(calibration)
    graph = load_graph(source)
    require_kept_exist(keep, graph)
    with new_folder(converted) as unfinished:
        target = unfinished / "model.onnx"
        if rewrite := REWRITES.get((wanted.compiler, precision)):
            graph = apply_passes(graph, rewrite())
            save_graph(graph, target)
        else:
            shutil.copyfile(source, target)
        if PRECISIONS[precision].is_quantized:
            calibrated = Calibration.read(made_from / "calibration.json")
            require_match(calibrated, made_from / "calibration.cache", source, samples)
            graph = quantized(precision, target, calibrated, samples, wanted, keep)
            save_graph(graph, target)
        elif precision != "fp32":
            graph = cast(target, precision, keep, samples.sizes)
            save_graph(graph, target)
        record = Conversion(precision=precision, opset=opset_of(graph), nodes=count_nodes(graph))
        record.write(unfinished / "convert.json")
    print(f"{precision}: {sum(record.nodes.values())} nodes, opset {record.opset}")


def quantized(
    precision: str, source: Path, calibrated: Calibration, samples: SampleSet, wanted: Dialect, keep: Keep
) -> onnx.ModelProto:
    """Return the graph with Q/DQ nodes where the compiler wants them. Ranges must cover all that is quantized."""
    graph, amax = load_graph(source), calibrated.amax
    rest = wanted.rest if keep.rest == "auto" else keep.rest
    high = nodes_beyond_int8(graph, amax)
    if precision == "int8" and wanted.compiler == "cpu" and rest == "fp32":
        kept = {*high, *kept_nodes(keep, graph)}
        require_tensors(calibrated, tensors_in_int8(graph, kept))
        ranges = {name: Range(calibrated.lowest.get(name, -value), value) for name, value in amax.items()}
        made = write_int8(graph, ranges, kept, wanted.largest_weight)
    else:
        more = keep.model_copy(update={"nodes": (*keep.nodes, *map(re.escape, high))})
        require_tensors(calibrated, tensors_to_quantize(source, precision, more, samples.sizes))
        made = quantize(source, precision, amax, more, rest, samples.sizes, wanted.largest_weight)
        high |= dict.fromkeys(nodes_with_tiny_inputs(source, precision, amax, rest), TINY_SCALE)
    for name, why in high.items():
        print(f"{precision}: {name} stays in {rest}: {why}")
    return made
