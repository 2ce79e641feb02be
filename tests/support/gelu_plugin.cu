// A plugin for QuickGelu, an operator of ONNX Runtime's own (com.microsoft) that TensorRT's parser does not know: x times
// the sigmoid of 1.702 x. It is found by the operator's name. For TensorRT 10.3 and newer. An operator of ONNX would need
// 10.15: earlier parsers refuse those that they know and cannot build, such as Det, before they look for a plugin.
//   nvcc -shared -Xcompiler -fPIC -o libgelu.so gelu_plugin.cu -lnvinfer  registers itself when it is opened
//   nvcc -DHAND_OUT ...                                                   hands its creator to TensorRT
#include <NvInfer.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace
{

constexpr int32_t threads = 128;

__global__ void quickGelu(float const* values, float* found, int64_t count)
{
    int64_t const index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index < count)
        found[index] = values[index] / (1.0F + expf(-1.702F * values[index]));
}

class QuickGelu : public nvinfer1::IPluginV3,
            public nvinfer1::IPluginV3OneCore,
            public nvinfer1::IPluginV3OneBuild,
            public nvinfer1::IPluginV3OneRuntime
{
public:
    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override
    {
        switch (type)
        {
        case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
        case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
        case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
        }
        return nullptr;
    }
    nvinfer1::IPluginV3* clone() noexcept override { return new QuickGelu; }

    char const* getPluginName() const noexcept override { return "QuickGelu"; }
    char const* getPluginVersion() const noexcept override { return "1"; }
    char const* getPluginNamespace() const noexcept override { return ""; }

    int32_t getNbOutputs() const noexcept override { return 1; }
    int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t, nvinfer1::DataType const* inputs,
        int32_t) const noexcept override
    {
        outputs[0] = inputs[0];
        return 0;
    }
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t, nvinfer1::DimsExprs const*, int32_t,
        nvinfer1::DimsExprs* outputs, int32_t, nvinfer1::IExprBuilder&) noexcept override
    {
        outputs[0] = inputs[0];
        return 0;
    }
    bool supportsFormatCombination(
        int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors, int32_t, int32_t) noexcept override
    {
        auto const& tensor = tensors[position].desc;
        return tensor.type == nvinfer1::DataType::kFLOAT && tensor.format == nvinfer1::TensorFormat::kLINEAR;
    }
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const*, int32_t, nvinfer1::DynamicPluginTensorDesc const*,
        int32_t) noexcept override
    {
        return 0;
    }

    int32_t onShapeChange(
        nvinfer1::PluginTensorDesc const*, int32_t, nvinfer1::PluginTensorDesc const*, int32_t) noexcept override
    {
        return 0;
    }
    int32_t enqueue(nvinfer1::PluginTensorDesc const*, nvinfer1::PluginTensorDesc const* described,
        void const* const* inputs, void* const* outputs, void*, cudaStream_t stream) noexcept override
    {
        int64_t count = 1;
        for (int32_t axis = 0; axis < described[0].dims.nbDims; ++axis)
            count *= described[0].dims.d[axis];
        auto const blocks = static_cast<unsigned int>((count + threads - 1) / threads);
        quickGelu<<<blocks, threads, 0, stream>>>(
            static_cast<float const*>(inputs[0]), static_cast<float*>(outputs[0]), count);
        return cudaPeekAtLastError() == cudaSuccess ? 0 : 1;
    }
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept override { return clone(); }
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &nothing; }

private:
    nvinfer1::PluginFieldCollection nothing{0, nullptr};
};

class QuickGeluCreator : public nvinfer1::IPluginCreatorV3One
{
public:
    nvinfer1::IPluginV3* createPlugin(
        char const*, nvinfer1::PluginFieldCollection const*, nvinfer1::TensorRTPhase) noexcept override
    {
        return new QuickGelu;
    }
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override { return &nothing; }
    char const* getPluginName() const noexcept override { return "QuickGelu"; }
    char const* getPluginVersion() const noexcept override { return "1"; }
    char const* getPluginNamespace() const noexcept override { return ""; }

private:
    nvinfer1::PluginFieldCollection nothing{0, nullptr};
};

} // namespace

#ifdef HAND_OUT
EXPORTED void setLoggerFinder(nvinfer1::ILoggerFinder*) {}
EXPORTED nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count)
{
    static QuickGeluCreator creator;
    static nvinfer1::IPluginCreatorInterface* const creators[]{&creator};
    count = 1;
    return creators;
}
#else
REGISTER_TENSORRT_PLUGIN(QuickGeluCreator);
#endif
