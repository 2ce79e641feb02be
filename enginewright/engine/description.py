"""Describe an engine from its folder, without a GPU and without its runtime."""

import json
from collections import Counter
from pathlib import Path

from tabulate import tabulate

from enginewright.core.facts import RUNTIMES
from enginewright.core.text import file_size
from enginewright.engine.machine import where
from enginewright.engine.record import EngineRecord, read_engine, short_kind, short_name
from enginewright.graph.interface import TensorSpec


def describe_engine(folder: Path) -> str:
    record = read_engine(folder)
    build = record.build
    executed = ", ".join(f"{count} {name}" for name, count in record.executed.items())
    facts = {
        "precision": record.precision,
        "compiled by": f"{record.target.runtime} {record.target.runtime_version}, in {record.build_seconds:.1f} s",
        "runs on": where(record.target),
        "files": ", ".join(f"{name} (sha256 {digest[:12]}, whole)" for name, digest in record.files.items()),
        "size": f"{file_size(record.bytes)}, of {file_size(record.onnx_bytes)} of ONNX",
        "weights": _weights(record),
        "ONNX": f"sha256 {record.onnx_sha256[:12]}",
        **{f"{axis} sizes": f"{sizes}, tuned for {sizes.opt}" for axis, sizes in record.profile.ranges.items()},
        **{
            f"profile {number}": f"{each}, tuned for {', '.join(f'{a} {size}' for a, size in each.at('opt').items())}"
            for number, each in enumerate(build.all_profiles)
            if number
        },
        "TF32": ("allowed" if build.tf32 else "not allowed") if record.target.device == "cuda" else None,
        "compute layers": executed or "not known: built where it cannot run",
        **_tuned(record),
        **{f"input {spec.name}": _tensor(spec, record) for spec in record.interface.inputs},
        **{f"output {spec.name}": _tensor(spec, record) for spec in record.interface.outputs},
        "classes": str(len(record.class_names)),
    }
    shown = {name: value for name, value in facts.items() if value}
    lines = [f"{name:<{max(map(len, shown))}}  {value}" for name, value in shown.items()]
    if record.layers:  # each under the name of its main node: engine.json names all fused nodes
        rows = [{"precision": one.precision, "layer": short_kind(one), "of": short_name(one)} for one in record.layers]
        lines += ["", tabulate(rows, headers="keys", tablefmt="plain", disable_numparse=True)]
    return "\n".join(lines)


def engine_as_json(folder: Path) -> str:
    """Return engine.json together with the values that are derived from it."""
    record = read_engine(folder)
    derived = {"executed": record.executed, "share_as_asked": record.share_as_asked, "identity": record.identity}
    return json.dumps(record.model_dump(mode="json") | derived, indent=2)


def _weights(record: EngineRecord) -> str | None:
    """Say where the weights are, if not all are in the plan and stay on the GPU, and whether others can be put in."""
    options = record.build.tensorrt
    if not RUNTIMES[record.target.runtime].is_tensorrt:
        return None
    words = {
        "taken from the ONNX file whenever the engine is opened": options.is_stripped,
        "others can be put in by `enginewright refit`": options.refit,
        "streamed from the host, as inference.weights_on_gpu_mb says": options.streaming,
    }
    return "; ".join(word for word, is_so in words.items() if is_so)


def _tuned(record: EngineRecord) -> dict[str, str]:
    """Count the compute layers of each of TensorRT's other profiles by their precision."""
    counts = Counter((layer.profile, layer.precision) for layer in record.tuned_layers if layer.computes)
    return {
        f"in profile {number}": ", ".join(
            f"{count} {name}" for (of, name), count in counts.most_common() if of == number
        )
        for number in sorted({number for number, _ in counts})
    }


def _tensor(spec: TensorSpec, record: EngineRecord) -> str:
    sizes = (record.profile.ranges.get(str(size), size) for size in spec.shape)
    held = ", ".join(f"{axis} {record.profile.ranges[axis]}" for axis in spec.values)
    return f"{spec.dtype}, {held or ' x '.join(map(str, sizes))}"
