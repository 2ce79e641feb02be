"""Convert the simplified graph to one precision: copy it for fp32, cast it for fp16 and bf16, else quantize it."""

import re
import shutil
from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params.precisions import Keep, PrecisionParams
from enginery.core.precisions import PRECISIONS
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import count_nodes, load_graph, opset_of, save_graph
from enginery.quantization.calibration.cache import read_cache
from enginery.quantization.calibration.provenance import Calibration, require_match, require_tensors
from enginery.quantization.cast import cast
from enginery.quantization.conversion import Conversion, require_kept_exist
from enginery.quantization.dialect import Dialect
from enginery.quantization.quantize import nodes_with_tiny_inputs, quantize, tensors_to_quantize
from enginery.quantization.structure import nodes_beyond_int8

TINY_SCALE = "it cannot hold the scale of what the node reads"


def convert(
    precision: str, simplified: Path, made_from: Path, calibration: Path, dialect: Path, converted: Path
) -> None:
    """Write model.onnx and convert.json."""
    keep = PrecisionParams.read_for(precision).keep
    source, samples = simplified / "model.onnx", SampleSet.open(calibration)
    require_kept_exist(keep, load_graph(source))
    with new_folder(converted) as unfinished:
        target = unfinished / "model.onnx"
        if precision == "fp32":
            shutil.copyfile(source, target)
        elif not PRECISIONS[precision].is_quantized:
            save_graph(cast(source, precision, keep, samples.sizes), target)
        else:
            wanted, calibrated = Dialect.read(dialect), Calibration.read(made_from / "calibration.json")
            rest = wanted.rest if keep.rest == "auto" else keep.rest
            beyond = nodes_beyond_int8(load_graph(source), calibrated.amax)
            keep = keep.model_copy(update={"nodes": (*keep.nodes, *map(re.escape, beyond))})
            amax = checked_ranges(precision, source, made_from, samples, keep)
            unsigned = calibrated.never_negative if wanted.unsigned else ()
            save_graph(
                quantize(source, precision, amax, keep, rest, samples.sizes, wanted.largest_weight, unsigned), target
            )
            tiny = dict.fromkeys(nodes_with_tiny_inputs(source, precision, amax, rest), TINY_SCALE)
            for name, why in (beyond | tiny).items():
                print(f"{precision}: {name} stays in {rest}: {why}")
        graph = load_graph(target)
        record = Conversion(precision=precision, opset=opset_of(graph), nodes=count_nodes(graph))
        record.write(unfinished / "convert.json")
    print(f"{precision}: {sum(record.nodes.values())} nodes, opset {record.opset}")


def checked_ranges(precision: str, source: Path, calibrated: Path, samples: SampleSet, keep: Keep) -> dict[str, float]:
    """Return the calibrated ranges, which must belong to this very graph and cover all that will be quantized."""
    cache = calibrated / "calibration.cache"
    require_match(Calibration.read(calibrated / "calibration.json"), cache, source, samples)
    amax = read_cache(cache)
    require_tensors(cache, amax, tensors_to_quantize(source, precision, keep, samples.sizes))
    return amax
