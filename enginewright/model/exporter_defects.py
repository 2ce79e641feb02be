"""What PyTorch's exporter to ONNX does wrong, and how each is worked around. All were seen in PyTorch 2.15.

tests/model/test_exporter_defects.py fails when a newer PyTorch no longer needs one of them."""

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import signature
from typing import Any, cast
from unittest.mock import patch

import onnx
import onnx_ir as ir
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from enginewright.core.errors import EnginewrightError
from enginewright.graph.passes.find import all_values, names_in_use, unused_name
from enginewright.model.checkpoint import call_model


class ByPosition(nn.Module):
    """The model with its inputs by position, as the guards on those by name read a variable that does not exist. Its
    result is a plain tuple, so that there are as many outputs as names."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = call_model(self.model, dict(zip(self.names, arrays, strict=True))).values()
        # as run_model does, since no engine returns more than float32
        return tuple(output.float() if output.dtype == torch.float64 else output for output in outputs)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter, which prints its progress, and on failure everything that it has traced."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "# The axis name")  # several inputs share one batch on purpose
        yield


@contextmanager
def lengths_that_vary(model: nn.Module) -> Iterator[None]:
    """Give the modules whose code the model runs a `len` that keeps the size of a tensor as one that varies. Python's
    own returns a number, which PyTorch then takes for the only size, as it does in RT-DETR of transformers."""
    names = {each.__module__ for part in model.modules() for each in type(part).__mro__}
    places = [vars(sys.modules[name]) for name in names if not name.startswith("torch.") and name in sys.modules]
    places = [place for place in places if "len" not in place]
    for place in places:
        place["len"] = lambda of: of.shape[0] if isinstance(of, torch.Tensor) and of.ndim else len(of)
    try:
        yield
    finally:
        for place in places:
            del place["len"]


@contextmanager
def bags_in_parts() -> Iterator[None]:
    """Look each embedding of a bag up and add them, where all bags have as many. The exporter writes a loop over
    samples for them, which grows a sequence of tensors: OpenVINO cannot read it."""
    whole = functional.embedding_bag

    def bag(*given: Any, **named: Any) -> torch.Tensor:
        call = signature(whole).bind(*given, **named)
        call.apply_defaults()
        settings = call.arguments
        ids, weight, padding = (settings[name] for name in ("input", "weight", "padding_idx"))
        if ids.ndim != 2 or settings["mode"] == "max" or settings["max_norm"] is not None:
            return whole(*given, **named)
        rows, shares = functional.embedding(ids, weight), settings["per_sample_weights"]
        rows = rows if shares is None else rows * shares[..., None]
        if padding is None:
            return rows.sum(1) if settings["mode"] == "sum" else rows.mean(1)
        counted = (ids != padding % len(weight))[..., None]
        total: torch.Tensor = (rows * counted).sum(1)
        return total if settings["mode"] == "sum" else total / counted.sum(1).clamp(min=1)

    with patch.object(functional, "embedding_bag", bag):
        yield


@contextmanager
def pools_as_means() -> Iterator[None]:
    """Pool whole images by a mean. Where channels come last, as in ConvNeXt and Swin, the exporter writes a Gather of
    each element behind it, in float32 and with casts around it in other types, since its indices are large numbers."""
    pool = functional.adaptive_avg_pool2d

    def mean(image: torch.Tensor, size: Any) -> torch.Tensor:
        return image.mean((-2, -1), keepdim=True) if size in (1, (1, 1), [1, 1]) else pool(image, size)

    with patch.object(functional, "adaptive_avg_pool2d", mean):
        yield


def attention_in_parts(model: nn.Module, arrays: tuple[torch.Tensor, ...], shapes: Any) -> torch.export.ExportedProgram:
    """Trace a model with its attentions in parts, which export. As one operator, the exporter gives an attention with a
    learned mask another layout than PyTorch, of which T5 takes a view."""
    traced = torch.export.export(model, arrays, dynamic_shapes=shapes, strict=False)
    return cast(torch.export.ExportedProgram, traced.run_decompositions())


def give_way_to_outputs(model: ir.Model) -> None:
    """Rename inner tensors that are called like an output, as the exporter calls them after their operators."""
    outputs, taken = {output.name for output in model.graph.outputs}, names_in_use(model)
    for value in all_values(model):
        if value.name in outputs and not value.is_graph_output():
            value.name = unused_name(value.name or "", taken)


def without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the exporter's stack traces, whose paths would make the same model differ between machines."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    return model


# Layers of ModelOpt and torch.ao that round: their ranges are tensors, on which the exporter stops. What pt2e of
# torchao returns needs no help.


class RoundingLayer(nn.Module):
    """A QuantizeLinear and a DequantizeLinear, for the exporter alone: with one scale, or one for each channel."""

    def __init__(self, scale: torch.Tensor, zero: torch.Tensor, axis: int | None) -> None:
        super().__init__()
        self.scale = nn.Buffer(scale.detach().float().clone().reshape(() if axis is None else -1))
        self.zero = nn.Buffer(zero.detach().reshape(self.scale.shape))
        self.before: torch.Tensor | None = None  # what SmoothQuant multiplies by
        self.axis: dict[str, Any] = {} if axis is None else {"axis": axis}
        self.ends: tuple[float, ...] = ()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values if self.before is None else values * self.before
        values = values.clamp(*self.ends) if self.ends else values
        node, given = torch.onnx.ops.symbolic, (self.scale, self.zero)
        rounded = node("QuantizeLinear", (values, *given), self.axis, dtype=self.zero.dtype, shape=values.shape)
        return node("DequantizeLinear", (rounded, *given), self.axis, dtype=values.dtype, shape=values.shape)


def export_rounding(model: nn.Module) -> None:
    """Put a RoundingLayer in the place of each layer that rounds, also of one that has several names."""
    for path, part in list(model.named_modules()):
        if hasattr(part, "weight_fake_quant") and hasattr(part, "bn"):
            _fold(part)
        for name, layer in part._modules.items():
            if hasattr(layer, "fake_quant_enabled"):
                part._modules[name] = _of_torch(layer) if layer.fake_quant_enabled else nn.Identity()
            elif hasattr(layer, "num_bits") and layer.is_enabled:
                part._modules[name] = _of_modelopt(layer, f"{path}.{name}".lstrip("."))


def _fold(layer: Any) -> None:
    """Fold BatchNorm into a convolution. torch.ao rounds such weights, and divides by its factor again behind them."""
    statistics = (getattr(layer.bn, name) for name in ("running_mean", "running_var", "eps", "weight", "bias"))
    layer.weight, layer.bias = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics)
    layer._forward = lambda values: layer._conv_forward(values, layer.weight_fake_quant(layer.weight), layer.bias)


def _of_torch(layer: Any) -> RoundingLayer:
    ends = layer.activation_post_process.quant_min, layer.activation_post_process.quant_max
    kind = torch.uint8 if ends[0] >= 0 else torch.int8
    made = RoundingLayer(layer.scale, layer.zero_point.to(kind), layer.ch_axis if layer.is_per_channel else None)
    if ends not in ((0, 255), (-128, 127)) and not layer.is_per_channel:  # weights keep within them
        made.ends = tuple(float((end - layer.zero_point) * layer.scale) for end in ends)
    return made


def _of_modelopt(layer: Any, name: str) -> RoundingLayer:
    amax, kind = layer.amax, {8: torch.int8, (4, 3): torch.float8_e4m3fn}.get(layer.num_bits)
    if amax is None or kind is None or layer.block_sizes or layer.unsigned:
        raise EnginewrightError(
            f"model.source: {name} does not round to int8 or fp8 by a calibrated range of a tensor or a channel: "
            "quantize with INT8_DEFAULT_CFG or FP8_DEFAULT_CFG of ModelOpt"
        )
    axis = next((number for number, size in enumerate(amax.shape) if size > 1), None)
    made = RoundingLayer(amax / layer.maxbound, torch.zeros_like(amax, dtype=kind), axis)
    made.before = layer.pre_quant_scale
    return made
