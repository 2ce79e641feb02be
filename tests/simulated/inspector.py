"""Describe an engine from its graph, in NVIDIA's layout, with its words and names of kernels.

The keys of TensorRT 11 are those of NVIDIA's page "Migrating IEngineInspector Usage from TensorRT 10.x to 11.x", of the
tools in its repository that read both, and of the library of TensorRT for RTX 1.7, which has the same inspector.
"""

from collections.abc import Iterable

import onnx
from onnx import TensorProto

from enginewright.graph.as_written import FP4_QUANTIZE, MXFP8_DEQUANTIZE, MXFP8_QUANTIZE

KINDS = {"Conv": ("CaskConvolution", "correlation"), "Gemm": ("CaskGemmMatrixMultiply", "gemm")}
KINDS["MatMul"] = KINDS["Gemm"]
ROUNDED = {FP4_QUANTIZE: "FP4", MXFP8_QUANTIZE: "FP8"}  # what the type is called is not documented
INVISIBLE = (  # become part of other layers
    "QuantizeLinear", "DequantizeLinear", "Constant", "Identity", "Cast", *ROUNDED, MXFP8_DEQUANTIZE,
)  # fmt: skip
TYPES = {
    TensorProto.FLOAT: "Float",
    TensorProto.FLOAT16: "Half",
    TensorProto.BFLOAT16: "BFloat16",
    TensorProto.INT8: "Int8",
    TensorProto.UINT8: "UInt8",
    TensorProto.FLOAT8E4M3FN: "FP8",
    TensorProto.INT64: "Int64",
    TensorProto.INT32: "Int32",
    TensorProto.BOOL: "Bool",
}
OLD_KEY = "Format/Datatype"
LINEAR = "Row major linear FP32 format (kLINEAR)"  # of every tensor here: nobody may read a type from a format
TACTICS = {
    "Half": "f16f16_f16f16_f16",
    "BFloat16": "bf16bf16_bf16f32_f32",
    "Int8": "i8i8_i8i32_f32",
    "FP8": "e4m3e4m3_e4m3f32_f32",
}


def describe_layers(model: onnx.ModelProto, settings: dict) -> list[dict]:
    """Describe all layers. Myelin, which names layers differently, compiles all of them here, and before 10.16 none."""
    graph = _Graph(model, settings)
    myelin = tuple(map(int, settings["version"].split(".")[:2])) >= (10, 16)
    return [graph.layer(node, myelin) for node in graph.nodes if node.op_type not in INVISIBLE]


def describe_io(tensors: Iterable[onnx.ValueInfoProto], settings: dict) -> dict:
    """Describe the inputs and outputs: names in TensorRT 10, and all that is known of them in 11."""
    if type_key(settings["version"]) == OLD_KEY:
        names = [tensor.name for tensor in tensors]
        others = range(1, len(settings["profiles"]))
        return {"Bindings": [*names, *(f"{name} [profile {number}]" for number in others for name in names)]}
    return {"I/O Tensors": [_io_tensor(tensor, settings["profiles"]) for tensor in tensors]}


def _io_tensor(tensor: onnx.ValueInfoProto, profiles: list[dict]) -> dict:
    described, is_input = tensor.type.tensor_type, tensor.name in profiles[0]
    shapes = [
        zip(("MinShape", "OptShape", "MaxShape"), each.get(tensor.name, ()), strict=is_input) for each in profiles
    ]
    return {
        "Name": tensor.name,
        "IOMode": "Input" if is_input else "Output",
        "DataType": TYPES.get(described.elem_type, "Float"),
        "Dimensions": _dimensions(described.shape.dim),
        "Location": "Device",
        "IsShapeInferenceIO": False,
        "ProfileInfo": [dict(bounds) | {"Format": LINEAR} for bounds in shapes],
    }


def type_key(version: str) -> str:
    """Return the key of the type of a layer's tensor."""
    return OLD_KEY if version.startswith("10.") else "Datatype"


def typed(element: str, version: str) -> dict[str, str]:
    """Return the type of a layer's tensor as this version of TensorRT writes it: 11 has another key for the format."""
    key = type_key(version)
    return {key: element} if key == OLD_KEY else {"Format": LINEAR, key: element}


def without_shapes(version: str) -> dict[str, str]:
    """Return what is written where shapes are not known: in TensorRT 11 the type is, and only the format is not."""
    if type_key(version) == OLD_KEY:
        return {OLD_KEY: "N/A due to dynamic shapes"}
    return {"Format": "Format not available due to dynamic shapes"}


def _dimensions(sizes: Iterable[onnx.TensorShapeProto.Dimension]) -> list[int]:
    return [size.dim_value if size.HasField("dim_value") else -1 for size in sizes]


class _Graph:
    def __init__(self, model: onnx.ModelProto, settings: dict) -> None:
        typed = onnx.shape_inference.infer_shapes(model).graph
        self.nodes = typed.node
        self._settings = settings
        self._makers = {name: node for node in typed.node for name in node.output}
        values = (*typed.value_info, *typed.input, *typed.output)
        self._values = {value.name: value.type.tensor_type for value in values}
        self._weights = {tensor.name: tensor for tensor in typed.initializer}

    def layer(self, node: onnx.NodeProto, myelin: bool) -> dict:
        kind = KINDS.get(node.op_type, (node.op_type, "kgen"))[myelin]
        inputs = [self._tensor(name) for name in node.input if name and not self._is_constant(name)]
        outputs = [self._tensor(name) for name in node.output]
        computes = node.op_type in KINDS and inputs
        return {
            "Name": node.name,
            "LayerType": kind,
            "Inputs": inputs,
            "Outputs": outputs,
            "TacticName": self._tactic(node, inputs[0][type_key(self._settings["version"])]) if computes else "",
            "StreamId": 0,
            "Metadata": f"[ONNX Layer: {node.name}]",
        }

    def _tensor(self, name: str) -> dict:
        sizes = self._values[name].shape.dim if name in self._values else []
        return {
            "Name": name,
            "Dimensions": _dimensions(sizes),
            **typed(self._type(name), self._settings["version"]),
        }

    def _type(self, name: str) -> str:
        """Return the type that a tensor is read in: its quantized type, or float where typing is not strong."""
        maker = self._makers.get(name)
        if maker and maker.op_type in ("DequantizeLinear", MXFP8_DEQUANTIZE):
            return self._type(maker.input[0])
        if maker and maker.op_type in ROUNDED:
            return ROUNDED[maker.op_type]
        if not self._settings["strongly_typed"]:
            return "Float"
        element = self._values[name].elem_type if name in self._values else TensorProto.FLOAT
        return TYPES.get(element, "Float")

    def _is_constant(self, name: str) -> bool:
        maker = self._makers.get(name)
        if maker and maker.op_type in INVISIBLE:
            return maker.op_type == "Constant" or self._is_constant(maker.input[0])
        return name in self._weights

    def _tactic(self, node: onnx.NodeProto, element: str) -> str:
        single = "tf32f32_tf32f32_f32" if self._settings["tf32"] else "f32f32_f32f32_f32"
        shape = "fprop_implicit_gemm" if node.op_type == "Conv" else "gemm"
        return f"sm80_xmma_{shape}_{TACTICS.get(element, single)}_tilesize128x64x32_stage4_warpsize2x2x1"
