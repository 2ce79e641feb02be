// A stand-in for TensorRT's header: what a bundle's main.cpp calls, with the signatures that TensorRT 10.0 to 11.1
// share, and those of TensorRT for RTX, from its documentation. pip's packages bring no headers. It cannot show that those
// of another version still fit.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nvinfer1
{

class Dims64
{
public:
    int32_t nbDims;
    int64_t d[8];
};
using Dims = Dims64;

enum class TensorIOMode : int32_t { kNONE = 0, kINPUT = 1, kOUTPUT = 2 };

class ILogger
{
public:
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, char const* message) noexcept = 0;
    virtual ~ILogger() = default;
};

class IExecutionContext
{
public:
    virtual ~IExecutionContext() noexcept = default;
    bool setInputShape(char const* name, Dims const& shape) noexcept;
    Dims getTensorShape(char const* name) const noexcept;
    int64_t getMaxOutputSize(char const* name) const noexcept;
    bool setTensorAddress(char const* name, void* address) noexcept;
    bool enqueueV3(cudaStream_t stream) noexcept;
    bool setOptimizationProfileAsync(int32_t profile, cudaStream_t stream) noexcept;
};

enum class OptProfileSelector : int32_t { kMIN = 0, kOPT = 1, kMAX = 2 };
enum class CudaGraphStrategy : int32_t { kDISABLED = 0, kWHOLE_GRAPH_CAPTURE = 1 };
enum class DynamicShapesKernelSpecializationStrategy : int32_t { kLAZY = 0, kEAGER = 1, kNONE = 2 };

class IRuntimeConfig
{
public:
    virtual ~IRuntimeConfig() noexcept = default;
    bool setCudaGraphStrategy(CudaGraphStrategy strategy) noexcept;
    void setDynamicShapesKernelSpecializationStrategy(DynamicShapesKernelSpecializationStrategy strategy) noexcept;
};

class ICudaEngine
{
public:
    virtual ~ICudaEngine() noexcept = default;
    int32_t getNbIOTensors() const noexcept;
    char const* getIOTensorName(int32_t index) const noexcept;
    TensorIOMode getTensorIOMode(char const* name) const noexcept;
    Dims getTensorShape(char const* name) const noexcept;
    int32_t getNbOptimizationProfiles() const noexcept;
    Dims getProfileShape(char const* name, int32_t profile, OptProfileSelector select) const noexcept;
    IRuntimeConfig* createRuntimeConfig() noexcept;
    IExecutionContext* createExecutionContext() noexcept;
    IExecutionContext* createExecutionContext(IRuntimeConfig* settings) noexcept;
    int64_t getStreamableWeightsSize() const noexcept;
    int64_t getDeviceMemorySizeV2() const noexcept;
    int64_t getWeightStreamingScratchMemorySize() const noexcept;
    bool setWeightStreamingBudgetV2(int64_t gpuMemoryBudget) noexcept;
    bool lacksWeights{false}; // of simulated.cpp
};

class IRefitter
{
public:
    virtual ~IRefitter() noexcept = default;
    bool refitCudaEngine() noexcept;
    ICudaEngine* engine{nullptr}; // of simulated.cpp, as the next one
    bool hasWeights{false};
};

class IPluginRegistry
{
public:
    virtual void* loadLibrary(char const* path) noexcept;
};

class IRuntime
{
public:
    virtual ~IRuntime() noexcept = default;
    void setEngineHostCodeAllowed(bool allowed) noexcept;
    ICudaEngine* deserializeCudaEngine(void const* plan, std::size_t size) noexcept;
    bool hostCodeAllowed{false}; // of simulated.cpp
};

IRuntime* createInferRuntime(ILogger& logger) noexcept;
IRefitter* createInferRefitter(ICudaEngine& engine, ILogger& logger) noexcept;

} // namespace nvinfer1

extern "C" nvinfer1::IPluginRegistry* getPluginRegistry() noexcept;
