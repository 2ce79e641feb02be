// What stands behind the headers here: enough of TensorRT and CUDA on a CPU to run a bundle's main.cpp. A plan that
// contains host code is refused unless that is allowed; the first run of a shape cannot be captured; a captured run
// happens at each launch of its graph, and not before. Instead of scores, an engine returns a 1 for the class that is
// the first number of an image. For texts it returns the sum of the tokens, twice that and minus half of that. What
// happened is written to stderr at the end.
#include "NvOnnxParser.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace
{

constexpr int classes = 16;
int runs = 0, launches = 0;
bool capturing = false, prepared = false;
std::function<void()> captured;
nvinfer1::Dims shape{};
std::map<std::string, void*> addresses;

void infer()
{
    if (addresses.count("ids"))
    {
        auto const* ids = static_cast<int64_t const*>(addresses.at("ids"));
        auto* vectors = static_cast<float*>(addresses.at("vector"));
        for (int64_t row = 0; row < shape.d[0]; ++row)
        {
            auto const sum = static_cast<float>(std::accumulate(ids + row * shape.d[1], ids + (row + 1) * shape.d[1], 0L));
            for (int place = 0; place < 3; ++place)
                vectors[row * 3 + place] = sum * (place == 0 ? 1.F : place == 1 ? 2.F : -0.5F);
        }
        ++runs;
        return;
    }
    auto const* images = static_cast<float const*>(addresses.at("input"));
    auto* scores = static_cast<float*>(addresses.at("logits"));
    std::size_t size = 1;
    for (int axis = 1; axis < shape.nbDims; ++axis)
        size *= static_cast<std::size_t>(shape.d[axis]);
    for (int64_t row = 0; row < shape.d[0]; ++row)
        for (int label = 0; label < classes; ++label)
            scores[row * classes + label] = label == static_cast<int>(images[row * size]);
    ++runs;
}

struct Report
{
    ~Report() { std::cerr << runs << " runs, " << launches << " of them launched as a graph\n"; }
} const report;

} // namespace

namespace nvinfer1
{

IRuntime* createInferRuntime(ILogger&) noexcept { return new IRuntime; }
void IRuntime::setEngineHostCodeAllowed(bool allowed) noexcept { hostCodeAllowed = allowed; }
void* IPluginRegistry::loadLibrary(char const* path) noexcept
{
    setenv("SIMULATED_PLUGINS", "of a library that hands them out", 1);
    return dlopen(path, RTLD_LAZY);
}
ICudaEngine* IRuntime::deserializeCudaEngine(void const* plan, std::size_t size) noexcept
{
    std::string const content(static_cast<char const*>(plan), size);
    bool const hasHostCode = content.find("\"version_compatible\": true") != std::string::npos;
    bool const hasPlugins = content.find("\"plugins\": []") == std::string::npos;
    bool const lacksPlugins = hasPlugins && std::getenv("SIMULATED_PLUGINS") == nullptr;
    auto* engine = (hasHostCode && !hostCodeAllowed) || lacksPlugins ? nullptr : new ICudaEngine;
    if (engine)
        engine->lacksWeights = content.find("\"refit\": \"\"") == std::string::npos;
    return engine;
}
IExecutionContext* ICudaEngine::createExecutionContext() noexcept
{
    return lacksWeights ? nullptr : new IExecutionContext;
}
IRefitter* createInferRefitter(ICudaEngine& engine, ILogger&) noexcept
{
    auto* refitter = new IRefitter;
    return refitter->engine = &engine, refitter;
}
bool IRefitter::refitCudaEngine() noexcept { return engine->lacksWeights = !hasWeights, hasWeights; }
int64_t ICudaEngine::getStreamableWeightsSize() const noexcept { return 4000; }
int64_t ICudaEngine::getDeviceMemorySizeV2() const noexcept { return 500; }
int64_t ICudaEngine::getWeightStreamingScratchMemorySize() const noexcept { return 100; }
bool ICudaEngine::setWeightStreamingBudgetV2(int64_t gpuMemoryBudget) noexcept
{
    return std::cerr << gpuMemoryBudget << " bytes of weights on the GPU, ", true;
}
// The engine has two profiles: batches of 2 to 8, tuned for 4, and of 2. A change of the profile forgets the shapes.
int32_t ICudaEngine::getNbOptimizationProfiles() const noexcept { return 2; }
Dims ICudaEngine::getProfileShape(char const*, int32_t profile, OptProfileSelector select) const noexcept
{
    int64_t const batches[2][3]{{2, 4, 8}, {2, 2, 2}};
    return {4, {batches[profile][static_cast<int>(select)], 3, 8, 8}};
}
bool IExecutionContext::setOptimizationProfileAsync(int32_t profile, cudaStream_t) noexcept
{
    std::cerr << "in profile " << profile << ", ";
    return shape = {}, true;
}
bool IExecutionContext::setInputShape(char const*, Dims const& given) noexcept { return shape = given, true; }
Dims IExecutionContext::getTensorShape(char const* name) const noexcept
{
    if (std::string(name) == "states")
        return {3, {shape.d[0], shape.d[1], 3}};
    return {2, {shape.d[0], std::string(name) == "vector" ? 3 : classes}};
}
int64_t IExecutionContext::getMaxOutputSize(char const*) const noexcept { return 4096; }
bool IExecutionContext::setTensorAddress(char const* name, void* at) noexcept { return addresses[name] = at, true; }
bool IExecutionContext::enqueueV3(cudaStream_t) noexcept
{
    if (capturing && !prepared)
        return false;
    if (capturing)
        captured = infer;
    else
        infer();
    return prepared = true;
}

} // namespace nvinfer1

namespace nvonnxparser
{

IParserRefitter* createParserRefitter(nvinfer1::IRefitter& refitter, nvinfer1::ILogger&) noexcept
{
    auto* parser = new IParserRefitter;
    return parser->refitter = &refitter, parser;
}
bool IParserRefitter::refitFromFile(char const* path) noexcept
{
    return refitter->hasWeights = std::ifstream(path).good();
}

} // namespace nvonnxparser

extern "C" nvinfer1::IPluginRegistry* getPluginRegistry() noexcept
{
    static nvinfer1::IPluginRegistry registry;
    return &registry;
}
extern "C" bool initLibNvInferPlugins(void*, char const*) { return true; }

char const* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaMalloc(void** address, std::size_t size) { return *address = ::operator new(size), cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) { return *free = 2000, *total = 9000, cudaSuccess; }
cudaError_t cudaFree(void* address) { return ::operator delete(address), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t count, cudaMemcpyKind, cudaStream_t)
{
    return std::memcpy(to, from, count), cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) { return *stream = nullptr, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return capturing ? cudaErrorUnknown : cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return capturing = true, cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph)
{
    return *graph = nullptr, capturing = false, captured ? cudaSuccess : cudaErrorUnknown;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long)
{
    return *graph = nullptr, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return captured(), ++launches, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
