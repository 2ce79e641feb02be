"""Describe the layers of an engine from its graph, in NVIDIA's layout, with its words and names of kernels."""

import onnx
from onnx import TensorProto

KINDS = {"Conv": ("CaskConvolution", "correlation"), "Gemm": ("CaskGemmMatrixMultiply", "gemm")}
KINDS["MatMul"] = KINDS["Gemm"]
INVISIBLE = ("QuantizeLinear", "DequantizeLinear", "Constant", "Identity", "Cast")  # become part of other layers
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
TACTICS = {
    "Half": "f16f16_f16f16_f16",
    "BFloat16": "bf16bf16_bf16f32_f32",
    "Int8": "i8i8_i8i32_f32",
    "FP8": "e4m3e4m3_e4m3f32_f32",
}


def describe_layers(model: onnx.ModelProto, settings: dict) -> list[dict]:
    """Describe all layers. Myelin, which names layers differently, compiles all of them here, and in 10.9 none."""
    graph = _Graph(model, settings)
    myelin = not settings["version"].startswith("10.9.")
    return [graph.layer(node, myelin) for node in graph.nodes if node.op_type not in INVISIBLE]


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
            "TacticName": self._tactic(node, inputs[0]["Format/Datatype"]) if computes else "",
            "StreamId": 0,
            "Metadata": f"[ONNX Layer: {node.name}]",
        }

    def _tensor(self, name: str) -> dict:
        sizes = self._values[name].shape.dim if name in self._values else []
        return {
            "Name": name,
            "Dimensions": [size.dim_value if size.HasField("dim_value") else -1 for size in sizes],
            "Format/Datatype": self._type(name),
        }

    def _type(self, name: str) -> str:
        """Return the type that a tensor is read in: its quantized type, or float where typing is not strong."""
        maker = self._makers.get(name)
        if maker and maker.op_type == "DequantizeLinear":
            return self._type(maker.input[0])
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
