// A stand-in for the header of TensorRT's plugins: see NvInfer.h. TensorRT for RTX has none of its own.
#pragma once

extern "C" bool initLibNvInferPlugins(void* logger, char const* libNamespace);
