"""Export a PyTorch model to ONNX."""

import re
from collections.abc import Iterable
from contextlib import suppress
from keyword import iskeyword
from pathlib import Path
from typing import Any, cast

import onnx
import onnx_ir as ir
import torch
from torch import nn

from enginewright.core.errors import EnginewrightError, bad_source
from enginewright.core.files import Record
from enginewright.core.params.build import Profile
from enginewright.core.text import first_line
from enginewright.data.feeds import BATCH, AxesOf, Feeds, HeldSizes
from enginewright.graph.as_written import open_as_written
from enginewright.graph.onnx_file import GraphCheck
from enginewright.model import exporter_defects
from enginewright.model.source_model import run_model
from enginewright.model.user_code import user_frames

EXPORT_LIMIT = 1e-4  # float32 sums in another order differ by about 1e-6; a wrong graph by 1e-2 and more
ROUNDED_LIMIT = 0.15  # then a last bit changes a step of 8 bits, and that others: PyTorch itself differs by 0.06
PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


class Export(Record):
    """The JSON document of the stage export."""

    opset: int
    nodes: dict[str, int]
    against_pytorch: GraphCheck


def require_names(inputs: Iterable[str]) -> None:
    """Refuse names that cannot be arguments, since PyTorch calls a model by them, and its exporter writes code."""
    for name in inputs:
        if not name.isidentifier() or iskeyword(name) or name == "self":
            raise bad_source(
                f"an input is called '{name}', which can be no argument of a PyTorch model's forward: rename it, for "
                "images by samples.input"
            )


def export_model(model: nn.Module, example: Feeds, axes_of: AxesOf, profile: Profile, opset: int) -> onnx.ModelProto:
    """Export the model; axes with a range in `profile` stay dynamic."""
    given = {name: torch.tensor(array) for name, array in example.items()}
    outputs = list(run_model(model, example))
    if twice := next((name for name in outputs if name in given), None):
        raise EnginewrightError(
            f"model.source: output {twice} has the name of an input, and names in a graph are unique: "
            "return it under another"
        )
    dims = {
        axis: torch.export.Dim(axis, min=1 if axis == BATCH else sizes.min, max=None if axis == BATCH else sizes.max)
        for axis, sizes in profile.ranges.items()
        if not sizes.fixed
    }
    exporter_defects.export_rounding(model)
    wrapped, arrays = exporter_defects.ByPosition(model, list(given)).eval(), tuple(given.values())
    varying = ({} if isinstance(axes_of[name], HeldSizes) else axes_of[name] for name in given)
    shapes = {"arrays": tuple({n: dims[axis] for n, axis in axes.items() if axis in dims} for axes in varying)}
    settings: dict[str, Any] = {"input_names": list(given), "output_names": outputs, "opset_version": opset}
    settings |= {"dynamic_shapes": shapes, "dynamo": True, "verbose": False}
    with exporter_defects.lengths_that_vary(model), exporter_defects.bags_in_parts(), exporter_defects.pools_as_means():
        program = _export(wrapped, arrays, settings)
    if unused := [value.name or "" for value in program.model.graph.inputs if not value.uses()]:
        raise EnginewrightError(
            f"the model does not use its input {', '.join(unused)}, and compilers differ in whether they keep it: "
            "leave it out of samples.source or samples.text.inputs, and give it a default in forward"
        )
    _require_sizes_that_vary(program.model, dict(zip(given, shapes["arrays"], strict=True)))
    exporter_defects.give_way_to_outputs(program.model)
    return exporter_defects.without_traces(program.model_proto)


def _require_sizes_that_vary(model: ir.Model, dims: dict[str, dict[int, Any]]) -> None:
    """Refuse a model whose code holds for one size alone: the exporter then fixes that size, and says nothing."""
    for value in model.graph.inputs:
        for number, dim in dims[value.name or ""].items():
            size = value.shape[number] if value.shape is not None else None
            if isinstance(size, int) and dim.__name__ != BATCH:  # of a batch, the graph's interface tells
                raise EnginewrightError(
                    f"the model's code fixes {dim.__name__} at {size}, as a loop over it or an int() of it does, and "
                    "build.profile lets it vary: set its min, opt and max there to the one size that you run"
                )


def _export(wrapped: nn.Module, arrays: tuple[torch.Tensor, ...], settings: dict[str, Any]) -> torch.onnx.ONNXProgram:
    try:
        with exporter_defects.quiet_exporter():
            return cast(torch.onnx.ONNXProgram, torch.onnx.export(wrapped, arrays, **settings))
    except torch.onnx.errors.OnnxExporterError as error:
        trace = ""
        with exporter_defects.quiet_exporter(), suppress(Exception):  # then the exporter's own error is all there is
            traced = exporter_defects.attention_in_parts(wrapped, arrays, settings["dynamic_shapes"])
            # The user's line, which the error does not tell: that of an operator without a translation.
            if named := re.search(r"translating node %(\w+)", str(error)):
                trace = next((str(n.meta.get("stack_trace", "")) for n in traced.graph.nodes if n.name == named[1]), "")
            return cast(torch.onnx.ONNXProgram, torch.onnx.export(traced, arrays, **settings))
        raise EnginewrightError(f"the model cannot be exported to ONNX: {_cause(error, trace)}") from None


def open_exported(path: Path, name: str) -> Any:
    try:
        return open_as_written(path)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise EnginewrightError(
            f"the ONNX graph of {name} cannot be run by ONNX Runtime: {first_line(error)}"
        ) from None


def _cause(error: BaseException, stack_trace: str) -> str:
    """Return PyTorch's reason, which names the operator, and the line of the user's model that it comes from."""
    chain = [error]
    while chain[-1].__cause__:
        chain.append(chain[-1].__cause__)
    reason = next((line for line in str(chain[-1]).splitlines() if line.strip()), type(chain[-1]).__name__)
    texts = "\n".join([*map(str, chain), stack_trace])
    places = [place for place in PLACE.findall(texts) if "site-packages" not in place[0]]
    places = places or [(frame.filename, str(frame.lineno), frame.name) for frame in user_frames(chain[-1])]
    return reason.strip() + ("" if not places else " ({}, line {}, in {})".format(*places[-1]))
