"""NVIDIA's own operators in ONNX files, which round in blocks while the engine runs: no other runtime has them."""

DOMAIN = "trt"
FP4_QUANTIZE = "TRT_FP4DynamicQuantize"
MXFP8_QUANTIZE, MXFP8_DEQUANTIZE = "TRT_MXFP8DynamicQuantize", "TRT_MXFP8DequantizeLinear"
