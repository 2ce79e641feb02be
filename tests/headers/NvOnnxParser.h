// A stand-in for the header of TensorRT's ONNX parser, as NvInfer.h beside it.
#pragma once
#include <NvInfer.h>

namespace nvonnxparser
{

class IParserRefitter
{
public:
    virtual ~IParserRefitter() noexcept = default;
    bool refitFromFile(char const* onnxModelFile) noexcept;
    nvinfer1::IRefitter* refitter{nullptr}; // of simulated.cpp
};

IParserRefitter* createParserRefitter(nvinfer1::IRefitter& refitter, nvinfer1::ILogger& logger) noexcept;

} // namespace nvonnxparser
