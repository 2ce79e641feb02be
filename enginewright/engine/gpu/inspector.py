"""Read the layers of an engine from the description that TensorRT's engine inspector gives."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginewright.engine.record import UNKNOWN, Layer

# Patterns of the names of types, such as "Int8", "Half" or "Row major linear FP32". The first that fits counts.
TYPES = {
    "bf16": r"BFloat16|BF16", "fp16": r"Half|FP16|Float16", "fp8": r"FP8|E4M3", "int8": r"Int8", "nvfp4": r"FP4|E2M1",
    "int4": r"Int4", "fp32": r"FP32|Float32|Float", "int32": r"Int32", "int64": r"Int64", "bool": r"Bool",
}  # fmt: skip
# Patterns of kernels' names, where the inspector does not say what they multiply: sm80_xmma_gemm_f32f32_tf32f32_f32_…
KERNELS = {
    "int8": r"i8i8|imma|int8", "fp8": r"e4m3|fp8", "bf16": r"bf16", "fp16": r"f16f16|h884|h1688|h16816|hmma|fp16",
    "tf32": r"tf32", "fp32": r"f32f32|sgemm|fp32",
}  # fmt: skip
COMPUTES = re.compile(r"conv|correlation|gemm|matmul|matrix_?multiply|attention|mha", re.IGNORECASE)


def layer_of(text: str, profile: int = 0) -> Layer:
    """Return a layer in an optimization profile. The precision is unknown where neither a type nor a kernel's name
    tells it."""
    described = json.loads(text)
    kind, kernel = str(described.get("LayerType", "")), str(described.get("TacticName", ""))
    return Layer(
        name=str(described.get("Name", "")).removesuffix(f" [profile {profile}]"),
        kind=f"{kind} {kernel}".strip(),
        precision=_precision(described.get("Inputs") or [], kernel),
        computes=bool(COMPUTES.search(f"{kind} {kernel}")),
        profile=profile,
    )


def _precision(inputs: Sequence[Mapping[str, Any]], kernel: str) -> str:
    """Return the type of the first input, which a convolution multiplies. Only its kernel tells TF32 from float32."""
    named = _first_fit(TYPES, _type(inputs[0])) if inputs else UNKNOWN
    multiplied = _first_fit(KERNELS, kernel)
    return multiplied if named == UNKNOWN or (named, multiplied) == ("fp32", "tf32") else named


def _type(tensor: Mapping[str, Any]) -> str:
    """Return the type of a tensor. TensorRT 10 has one key for format and type, 11 one for each."""
    return str(tensor.get("Datatype") or tensor.get("Format/Datatype") or "")


def _first_fit(words: Mapping[str, str], text: str) -> str:
    return next((name for name, pattern in words.items() if re.search(pattern, text, re.IGNORECASE)), UNKNOWN)
