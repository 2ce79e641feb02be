// A stand-in for ONNX Runtime's header: what a bundle's main.cpp calls, as that header declares it, so that a compiler can
// check it. The Python package has no headers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

enum GraphOptimizationLevel { ORT_DISABLE_ALL = 0, ORT_ENABLE_ALL = 99 };
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtDeviceAllocator = 0, OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };
enum ONNXTensorElementDataType { ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED };
struct OrtMemoryInfo;
struct OrtCUDAProviderOptionsV2;

namespace Ort
{

struct Env
{
    Env(OrtLoggingLevel level, char const* id);
    Env& DisableTelemetryEvents();
};
struct CUDAProviderOptions
{
    CUDAProviderOptions();
    void Update(std::unordered_map<std::string, std::string> const& options);
    OrtCUDAProviderOptionsV2& operator*();
};
struct SessionOptions
{
    SessionOptions();
    SessionOptions& SetGraphOptimizationLevel(GraphOptimizationLevel level);
    SessionOptions& AppendExecutionProvider_CUDA_V2(OrtCUDAProviderOptionsV2 const& options);
};
struct RunOptions
{
    explicit RunOptions(std::nullptr_t);
};
struct MemoryInfo
{
    static MemoryInfo CreateCpu(OrtAllocatorType type, OrtMemType memory);
    operator OrtMemoryInfo const*() const;
};
struct TensorTypeAndShapeInfo
{
    ONNXTensorElementDataType GetElementType() const;
    std::vector<int64_t> GetShape() const;
};
struct TypeInfo
{
    TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const;
};
struct Value
{
    Value(Value&&);
    static Value CreateTensor(OrtMemoryInfo const* memory, void* data, std::size_t bytes, int64_t const* shape, std::size_t axes, ONNXTensorElementDataType type);
    TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const;
    void const* GetTensorRawData() const;
};
struct Session
{
    explicit Session(std::nullptr_t);
    Session(Env const& env, char const* path, SessionOptions const& options);
    TypeInfo GetInputTypeInfo(std::size_t index) const;
    std::vector<Value> Run(RunOptions const& options, char const* const* inputs, Value const* values, std::size_t count, char const* const* outputs, std::size_t answers);
};

} // namespace Ort
