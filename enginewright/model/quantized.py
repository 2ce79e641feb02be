"""Let the layers of a model that was quantized in PyTorch export as Q/DQ nodes: those of ModelOpt and of torch.ao.

What pt2e of torchao returns needs no help: the exporter knows its operators."""

from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from enginewright.core.errors import EnginewrightError


class RoundingLayer(nn.Module):
    """A QuantizeLinear and a DequantizeLinear. This is to be exported, and PyTorch cannot run it."""

    def __init__(self, scale: torch.Tensor, zero: torch.Tensor, axis: int | None) -> None:
        """Take one scale, or one for each channel along an axis."""
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
    """Put a RoundingLayer in the place of each layer that rounds: the exporter stops on ranges that are tensors."""
    for path, part in list(model.named_modules()):
        if hasattr(part, "weight_fake_quant") and hasattr(part, "bn"):
            _fold(part)
        for name, layer in part._modules.items():  # also one that has several names
            if hasattr(layer, "fake_quant_enabled"):
                part._modules[name] = _of_torch(layer)
            elif hasattr(layer, "is_enabled") and hasattr(layer, "num_bits"):
                part._modules[name] = _of_modelopt(layer, f"{path}.{name}")


def _fold(layer: Any) -> None:
    """Fold BatchNorm into a convolution. torch.ao rounds such weights, and divides by its factor again behind them."""
    norm = layer.bn
    statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    layer.weight, layer.bias = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics)
    layer._forward = lambda values: layer._conv_forward(values, layer.weight_fake_quant(layer.weight), layer.bias)


def _of_torch(layer: Any) -> nn.Module:
    if not layer.fake_quant_enabled:
        return nn.Identity()
    observer = layer.activation_post_process
    ends = observer.quant_min, observer.quant_max
    kind = torch.uint8 if ends[0] >= 0 else torch.int8
    made = RoundingLayer(layer.scale, layer.zero_point.to(kind), layer.ch_axis if layer.is_per_channel else None)
    if ends not in ((0, 255), (-128, 127)) and not layer.is_per_channel:  # weights reach no farther than their ends
        made.ends = tuple(float((end - layer.zero_point) * layer.scale) for end in ends)
    return made


def _of_modelopt(layer: Any, name: str) -> nn.Module:
    if not layer.is_enabled:
        return cast(nn.Module, layer)
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
