"""Export a PyTorch model to ONNX."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from keyword import iskeyword
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params.build import Profile
from enginery.data.feeds import BATCH, Axes, Feeds
from enginery.graph.as_written import open_as_written
from enginery.model.call import call_model
from enginery.model.source_model import run_model
from enginery.model.user_code import users_frames

EXPORT_LIMIT = 1e-4  # float32 sums in another order differ by about 1e-6; a wrong graph by 1e-2 and more
MOST_BYTES = 2**31 - 2**20  # less what the graph itself takes
PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


class _Flat(nn.Module):
    """Returns a plain tuple, so that the exporter finds as many outputs as there are names.

    Of float64 it returns float32, as `run_model` does: no engine answers in more.
    """

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, **feeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = call_model(self.model, {name: feeds[name] for name in self.names}).values()
        return tuple(output.float() if output.dtype == torch.float64 else output for output in outputs)


def require_names(inputs: Iterable[str]) -> None:
    """PyTorch calls a model by them, and its exporter writes them into code."""
    for name in inputs:
        if not name.isidentifier() or iskeyword(name) or name == "self":
            raise EngineryError(
                f"samples.source: an input is called '{name}', which can be no argument of a PyTorch model's forward: "
                "call it otherwise, of images by samples.input"
            )


def export_model(model: nn.Module, example: Feeds, axes: Axes, profile: Profile, opset: int) -> onnx.ModelProto:
    """What has a range in `profile` stays dynamic. BatchNorm is folded into the convolutions by the exporter."""
    _require_holdable(model)
    given = {name: torch.tensor(array) for name, array in example.items()}
    outputs = list(run_model(model, example))
    if twice := [name for name in outputs if name in given]:
        raise EngineryError(
            f"model.source: output {twice[0]} is called like an input, and a graph has one tensor of a name: "
            "return it under another"
        )
    dynamic = {
        number: torch.export.Dim(axis, min=1 if axis == BATCH else sizes.min, max=None if axis == BATCH else sizes.max)
        for number, axis in axes.items()
        if (sizes := profile.ranges.get(axis)) and not sizes.fixed
    }
    flat, shapes = _Flat(model, list(given)).eval(), {"feeds": dict.fromkeys(given, dynamic)}
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                flat,
                (),
                kwargs=given,
                dynamo=True,
                opset_version=opset,
                input_names=list(given),
                output_names=outputs,
                dynamic_shapes=shapes,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        with _quiet_exporter():
            traced = _traced(lambda: torch.export.export(flat, (), given, dynamic_shapes=shapes, strict=False))
            place = _place_of(error, traced) if traced else ""
        if ignored := _ignored(traced, list(given)) if traced else []:
            raise EngineryError(
                f"the model makes no use of its input {', '.join(ignored)}, and PyTorch cannot export it with such: "
                "leave it out of samples.source, and give it a default in forward"
            ) from None
        raise EngineryError(f"the model cannot be exported to ONNX: {_cause(error, place)}") from None
    if program is None:
        raise EngineryError("the model cannot be exported to ONNX: PyTorch returned no program")
    return _without_traces(program.model_proto)


def _require_holdable(model: nn.Module) -> None:
    """Protobuf, which ONNX files are written in, holds no more; it says so in a traceback, and late."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    if size > MOST_BYTES:
        raise EngineryError(
            f"model.source: its weights take {size / 1e9:.1f} GB, and an ONNX file holds {MOST_BYTES / 1e9:.1f} at most"
        )


def open_exported(path: Path, name: str) -> Any:
    try:
        return open_as_written(path)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        why = str(error).strip().partition("\n")[0]
        raise EngineryError(f"the ONNX graph of {name} cannot be run by ONNX Runtime: {why}") from None


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """It prints its progress; and once it fails, all that it has traced, over the line that we tell."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name")  # that several inputs share one batch is meant so
        yield


def _cause(error: BaseException, place: str) -> str:
    """PyTorch's reason, which names the operator, and the line of the user's model that it comes from."""
    chain = [error]
    while chain[-1].__cause__:
        chain.append(chain[-1].__cause__)
    reason = next((line for line in str(chain[-1]).splitlines() if line.strip()), type(chain[-1]).__name__)
    own = [place for place in PLACE.findall("\n".join([*map(str, chain), place])) if "site-packages" not in place[0]]
    own = own or [(frame.filename, str(frame.lineno), frame.name) for frame in users_frames(chain[-1])]
    return reason.strip() + (f" ({own[-1][0]}, line {own[-1][1]}, in {own[-1][2]})" if own else "")


def _traced(trace: Callable[[], torch.export.ExportedProgram]) -> torch.export.ExportedProgram | None:
    """What the exporter could not write, once more: its error does not tell all."""
    with contextlib.suppress(Exception):  # the reason alone will have to do
        return trace()
    return None


def _ignored(program: torch.export.ExportedProgram, inputs: list[str]) -> list[str]:
    """The inputs that nothing reads."""
    read = {node.name for node in program.graph.nodes if node.users}
    return [name for name, place in zip(inputs, program.graph_signature.user_inputs, strict=True) if place not in read]


def _place_of(error: BaseException, program: torch.export.ExportedProgram) -> str:
    """Where the model uses an operator that has no translation: the error names a node, the traced program a line."""
    named = re.search(r"translating node %(\w+)", str(error))
    if not named:
        return ""
    with contextlib.suppress(Exception):
        for node in program.run_decompositions().graph.nodes:
            if node.name == named[1]:
                return str(node.meta.get("stack_trace", ""))
    return ""


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop the exporter's stack traces: they hold this machine's paths, so the same model would differ elsewhere."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    return model
