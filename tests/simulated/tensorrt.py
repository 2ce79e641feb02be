"""`tensorrt`: NVIDIA's real enumerations, interfaces and signatures; ONNX Runtime on the CPU behind them.

SIMULATED_TENSORRT is the version. Errors have TensorRT's words where these are known: the words of the parser, the
builder and the profile are from TensorRT for RTX, which shares them and runs without a GPU. What was seen with a real
TensorRT on a real GPU is marked as seen; the rest follows documents, headers and bindings.
"""

import ctypes
import datetime
import functools
import itertools
import json
import math
import os
import time
import weakref

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from enginewright.graph.as_written import (
    DOMAIN,
    FP4_QUANTIZE,
    MXFP8_DEQUANTIZE,
    MXFP8_QUANTIZE,
    open_as_written,
    twin_of,
)
from enginewright.graph.read_interface import shape_inputs
from simulated import cudart, failing
from simulated.bindings import load_bindings
from simulated.inspector import describe_io, describe_layers, without_shapes
from simulated.nvml import NAME
from simulated.surface import PLAIN, Simulated

trt = load_bindings(os.environ["SIMULATED_TENSORRT"])
__version__ = trt.__version__

MAGIC, CACHE_MAGIC = b"ftrt", b"timings"
# A plan holds kernels beside weights, and a stripped one more than that. Of a tiny network the stripped plan is the
# larger one: in fp16 316,844 bytes and 275,300, in int8 577,372 and 297,484 (seen with 10.6 on an H200).
KERNELS, KERNELS_OF_STRIPPED = 250_000, 310_000
DTYPES = {
    TensorProto.FLOAT: trt.DataType.FLOAT,
    TensorProto.DOUBLE: trt.DataType.FLOAT,  # TensorRT has no double, and says nothing
    TensorProto.FLOAT16: trt.DataType.HALF,
    TensorProto.BFLOAT16: trt.DataType.BF16,
    TensorProto.INT8: trt.DataType.INT8,
    TensorProto.UINT8: trt.DataType.UINT8,
    TensorProto.INT32: trt.DataType.INT32,
    TensorProto.INT64: trt.DataType.INT64,
    TensorProto.BOOL: trt.DataType.BOOL,
}
FLOATS = (trt.DataType.FLOAT, trt.DataType.HALF, trt.DataType.BF16)
# The operators that TensorRT's parser imports as plugins, and what it calls them where they are not registered.
PLUGINS = {"RoiAlign": "ROIAlign", "ScatterElements": "ScatterReduction", "DeformConv": "ModulatedDeformConv2d"}
# The operators that its parser has beside ONNX's, as ModelOpt exports them: where it has their types.
NEEDED_TYPES = {FP4_QUANTIZE: "FP4", MXFP8_QUANTIZE: "E8M0", MXFP8_DEQUANTIZE: "E8M0"}
OWN_OPERATORS = {(DOMAIN, name) for name, kind in NEEDED_TYPES.items() if hasattr(trt.DataType, kind)}
_registry = {"plugins": False, "of libraries": set()}
# The first compute capability that has a type, and what the builder says for older GPUs: for fp8 in the words that
# users report (issue 70 of Model-Optimizer), for the others in words made like them.
HARDWARE = {
    TensorProto.BFLOAT16: ((8, 0), "Networks with BF16 precision require hardware with BF16 support."),
    TensorProto.FLOAT8E4M3FN: ((8, 9), "Networks with FP8 Q/DQ layers require hardware with FP8 support."),
    TensorProto.INT4: ((8, 0), "Networks with INT4 DQ layers require hardware with INT4 support."),
    TensorProto.FLOAT4E2M1: ((10, 0), "Networks with FP4 Q/DQ layers require hardware with FP4 support."),
}
# Of an engine with several profiles, get_engine_information returned an empty text (seen with 10.6 on an H200). Later
# versions are taken to describe them as NVIDIA's documents show it.
VERSION = tuple(map(int, __version__.split(".")[:2]))
DESCRIBES_PROFILES = VERSION > (10, 6)
ERROR, WARNING = trt.ILogger.ERROR, trt.ILogger.WARNING
OUT_OF_MEMORY = (
    "[defaultAllocator.cpp::allocate::57] Error Code 1: Cuda Runtime (out of memory)",
    "Requested amount of GPU memory ({} bytes) could not be allocated. There may not be enough free memory for "
    "allocation to succeed.",
)


def __getattr__(name: str):
    """Return the real thing where the simulation has none, as for enumerations."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(trt, name)


def init_libnvinfer_plugins(logger, namespace):
    """Register the plugins of TensorRT's own library for this process."""
    trt.init_libnvinfer_plugins(logger, namespace)  # the bindings refuse what is no logger
    _registry["plugins"] = True
    _registry.setdefault("logger", logger)
    return True


def get_plugin_registry():
    return IPluginRegistry._new()


class IPluginRegistry(Simulated, real=trt.IPluginRegistry):
    """Registers the plugins of users' libraries. In the simulation a plugin is the name of an operator alone."""

    def load_library(self, plugin_path):
        call = "IPluginRegistry::loadLibrary: Error Code"
        try:
            library = ctypes.CDLL(plugin_path)
        except OSError as error:
            return _log_registry(f"{call} 6: API Usage Error (Unable to load library: {plugin_path}: {error})")
        for symbol in ("getCreators", "setLoggerFinder"):
            if not hasattr(library, symbol):
                why = f"SymbolAddress for {symbol} could not be loaded, check function name against library symbol"
                return _log_registry(f"{call} 3: API Usage Error ({why})")
        count = ctypes.c_int32()
        library.getCreators.restype = ctypes.POINTER(ctypes.c_char_p)
        names = library.getCreators(ctypes.byref(count))
        found = {names[index].decode() for index in range(count.value)}
        if not found:
            why = f"No creator returned by getPluginCreators in {plugin_path}."
            return _log_registry(f"{call} 4: API Usage Error ({why})")
        if found & _registry["of libraries"]:
            return _log_registry(f"{call} 4: API Usage Error (Plugin creator already registered.)")
        _registry["of libraries"] |= found
        return datetime.datetime_CAPI  # a capsule at hand, for nobody looks into the library's handle


def _log_registry(why: str) -> None:
    """Log to the first logger of the process, as TensorRT does. Without a builder or a runtime there is none."""
    _registry["logger"].log(ERROR, why)


def _registered_by_libraries() -> set[str]:
    """Return the operators with a plugin of a user's library. One that registers them by itself, when it is opened,
    tells the simulation by a variable of the process's environment in C."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return _registry["of libraries"] | set((getenv(b"SIMULATED_PLUGINS") or b"").decode().split())


def _why_not_rounded(node: onnx.NodeProto, graph: onnx.GraphProto) -> str | None:
    """Refuse what TensorRT for RTX 1.7 refused, in its words."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    stored = {each.name: each for each in graph.initializer if each.name in node.input}
    if node.input[0] in stored and stored[node.input[0]].data_type == TensorProto.INT32:
        why = "input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8."
        return f"Invalid Node - {node.name} ITensor::getDimensions: Error Code 4: API Usage Error ({node.name}: {why})"
    zeros = [onnx.numpy_helper.to_array(stored[name]) for name in node.input[2:] if name in stored]
    if any(zero.astype(np.float32).any() for zero in zeros):
        return "Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported."
    return None


def _is_plugin(node: onnx.NodeProto) -> bool:
    """Tell whether TensorRT needs a plugin for a node. Without a reduction, ScatterElements is a layer of its own."""
    reduced = any(attribute.name == "reduction" and attribute.s != b"none" for attribute in node.attribute)
    return node.op_type in PLUGINS and (reduced or node.op_type != "ScatterElements")


class IHostMemory(Simulated, bytearray, real=trt.IHostMemory):
    """A bytearray, because nothing else written in Python can be read as a buffer. Its own methods are hidden."""

    __len__ = __getitem__ = __iter__ = None

    @classmethod
    def _holding(cls, content: bytes):
        new = cls._new()
        bytearray.extend(new, content)
        return new

    def __getattribute__(self, name: str):
        if not name.startswith("_") and not hasattr(trt.IHostMemory, name):
            raise AttributeError(f"'IHostMemory' object has no attribute {name!r}")
        return super().__getattribute__(name)

    def __bool__(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        return memoryview(self).nbytes


class ITensor(Simulated, real=trt.ITensor):
    @property
    def name(self) -> str:
        return self._proto.name

    @property
    def dtype(self):
        return DTYPES[self._proto.type.tensor_type.elem_type]

    @property
    def shape(self):
        sizes = self._proto.type.tensor_type.shape.dim
        return trt.Dims([size.dim_value if size.HasField("dim_value") else -1 for size in sizes])

    @property
    def is_shape_tensor(self) -> bool:
        return self._holds_sizes


class ILayer(Simulated, real=trt.ILayer):
    """The part that ModelOpt looks at in search of plugins, where it finds TensorRT installed."""

    num_inputs = num_outputs = 0
    type = trt.LayerType.IDENTITY

    @property
    def name(self) -> str:
        return self._node.name


class INetworkDefinition(Simulated, real=trt.INetworkDefinition):
    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def num_layers(self) -> int:
        return len(self._nodes)

    def get_layer(self, index):
        return ILayer._new(node=self._nodes[index])

    def get_input(self, index):
        return ITensor._new(proto=self._inputs[index], holds_sizes=self._inputs[index].name in self._holding)

    def get_output(self, index):
        return ITensor._new(proto=self._outputs[index], holds_sizes=False)


class ParserError(Simulated, real=trt.ParserError):
    def desc(self):
        return self._description

    def code(self):
        return self._code

    def node_name(self):
        return self._node.name

    def node_operator(self):
        return self._node.op_type


class OnnxParser(Simulated, real=trt.OnnxParser):
    def __init__(self, network, logger):
        self._network, self._logger, self._errors = network, logger, []

    def set_flag(self, flag):
        self._flags = {*vars(self).get("_flags", ()), flag.name}

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index):
        return self._errors[index]

    def parse_from_file(self, model):
        try:
            read = onnx.load(model)  # with weights that are beside the file, as NVIDIA's parser
            graph, self._content = read.graph, read.SerializeToString()
        except OSError:
            return self._refuse(f"Input file cannot be found, or is not a regular file: {model}", "INVALID_VALUE")
        except Exception:  # protobuf's, of which there are two implementations
            return self._refuse("Failed to parse the ONNX model.", "MODEL_DESERIALIZE_FAILED")
        own = _registered_by_libraries()
        in_bytes = {each.name for each in graph.initializer if each.data_type == onnx.TensorProto.INT8}
        for node in graph.node:
            known = onnx.defs.has(node.op_type, node.domain) or (node.domain, node.op_type) in OWN_OPERATORS
            if node.op_type in own and (not known or "ENABLE_PLUGIN_OVERRIDE" in vars(self).get("_flags", ())):
                self._network._plugins.add(node.op_type)
                continue
            if not known:
                return self._refuse(
                    'creator && "Plugin not found, are the plugin name, version, and namespace correct?"',
                    "INVALID_NODE",
                    node,
                )
            # 10.6 said this on an H200. TensorRT for RTX 1.7, which is newer, takes bytes in blocks.
            in_blocks = node.op_type == "DequantizeLinear" and any(each.name == "block_size" for each in node.attribute)
            if in_blocks and node.input[0] in in_bytes and VERSION <= (10, 6):
                why = "Block quantization is supported only for DataType::kINT4"
                return self._refuse(f"Invalid Node - {node.name} Error Code 3: {why}", "INVALID_NODE", node)
            if why := _why_not_rounded(node, graph):
                return self._refuse(why, "INVALID_NODE", node)
            if _is_plugin(node) and not _registry["plugins"]:
                why = f'plugin != nullptr && "{PLUGINS[node.op_type]} plugin was not found in the plugin registry!"'
                return self._refuse(why, "UNSUPPORTED_NODE", node)
        tensors = [*graph.input, *graph.output]
        if any(tensor.type.tensor_type.elem_type not in DTYPES for tensor in tensors):
            return self._refuse("Failed to convert ONNX date type to TensorRT data type.", "UNSUPPORTED_NODE")
        weights = {tensor.name for tensor in graph.initializer}
        self._network._inputs = [tensor for tensor in graph.input if tensor.name not in weights]
        self._network._outputs, self._network._holding = list(graph.output), shape_inputs(graph)
        self._network._nodes = list(graph.node)
        cast_to = {one.i for node in graph.node for one in node.attribute if one.name == "to"}
        self._network._types = cast_to | {tensor.data_type for tensor in graph.initializer}
        self._network._parser = weakref.ref(self)  # the network only borrows the weights
        return True

    def _refuse(self, why, code, node=None):
        node = node or onnx.NodeProto()
        self._errors.append(ParserError._new(description=why, code=getattr(trt.ErrorCode, code), node=node))
        self._logger.log(ERROR, f"ModelImporter.cpp:151: ERROR: {code}: {why}")
        return False


class IOptimizationProfile(Simulated, real=trt.IOptimizationProfile):
    def set_shape(self, input, min, opt, max):
        if not len(min) == len(opt) == len(max):
            raise RuntimeError("Shape provided for opt is inconsistent with other shapes.")
        self._shapes[input] = [tuple(min), tuple(opt), tuple(max)]

    def set_shape_input(self, input, min, opt, max):
        if not len(min) == len(opt) == len(max):
            raise RuntimeError("Shape input provided for opt is inconsistent with other shape inputs.")
        self._values[input] = [tuple(min), tuple(opt), tuple(max)]


class ITimingCache(Simulated, real=trt.ITimingCache):
    def serialize(self):
        return IHostMemory._holding(CACHE_MAGIC + json.dumps(self._timings).encode())

    def combine(self, input_cache, ignore_mismatch):
        self._timings |= input_cache._timings
        return True


class IBuilderConfig(Simulated, real=trt.IBuilderConfig):
    builder_optimization_level = 3
    avg_timing_iterations = 1
    max_aux_streams = -1
    profiling_verbosity = trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    hardware_compatibility_level = trt.HardwareCompatibilityLevel.NONE

    if hasattr(trt, "TilingOptimizationLevel"):

        @property
        def tiling_optimization_level(self):
            return self._tiling

        @tiling_optimization_level.setter
        def tiling_optimization_level(self, level):
            if failing("tiling_refused"):  # the C++ setter returns false, which the bindings do not pass on
                return self._logger.log(ERROR, "Error Code 3: API Usage Error (Tiling is not supported on this GPU.)")
            self._tiling = level

    if hasattr(trt.IBuilderConfig, "build_route"):
        build_route = ""

        @property
        def all_build_routes(self):
            options = {"-peep:max": ("[1|2]", "1"), "-seed": ("[0|1|...]", "0")}
            told = [{"option": n, "allowed_values": v, "default_value": d} for n, (v, d) in options.items()]
            return json.dumps({"tuner_version": "simulated", "tuner_options": told})

    def set_flag(self, flag):
        self._flags.add(flag)

    def clear_flag(self, flag):
        self._flags.discard(flag)

    def get_flag(self, flag):
        return flag in self._flags

    def set_memory_pool_limit(self, pool, pool_size):
        self._limits[pool] = pool_size

    def add_optimization_profile(self, profile):
        for name, (low, likely, high) in (profile._shapes | profile._values).items():
            if not all(a <= b <= c for a, b, c in zip(low, likely, high, strict=True)):
                self._logger.log(
                    ERROR,
                    "IOptimizationProfile::isValid: Error Code 4: API Usage Error (Invalid optimization profiles for "
                    f"input tensors {name}, please ensure that the optimization profiles satisfy MIN<=OPT<=MAX. In "
                    "isValid at /_src/optimizer/api/optimizationProfile.cpp:367)",
                )
                return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache):
        content = bytes(serialized_timing_cache)
        if not content:
            return ITimingCache._new(timings={})
        try:
            if not content.startswith(CACHE_MAGIC):
                raise ValueError
            return ITimingCache._new(timings=json.loads(content.removeprefix(CACHE_MAGIC)))
        except ValueError:
            self._logger.log(WARNING, "The timing cache will not be used!")
            self._logger.log(WARNING, "Failed to deserialize timing cache. Returning an empty timing cache.")
            return ITimingCache._new(timings={})

    def set_timing_cache(self, cache, ignore_mismatch):
        if failing("cache_refused") and cache._timings:
            return False
        self._cache = cache
        return True

    def get_timing_cache(self):
        return self._cache


class Builder(Simulated, real=trt.Builder):
    def __init__(self, logger):
        self._logger = logger
        _registry.setdefault("logger", logger)

    def create_network(self, flags=0):
        return INetworkDefinition._new(
            inputs=[],
            outputs=[],
            holding={},
            nodes=[],
            types=set(),
            plugins=set(),
            parser=lambda: None,
            flags=int(flags),
        )

    def create_builder_config(self):
        state = {"flags": {trt.BuilderFlag.TF32}, "limits": {}, "profiles": [], "cache": None}
        if hasattr(trt, "TilingOptimizationLevel"):
            state["tiling"] = trt.TilingOptimizationLevel.NONE
        return IBuilderConfig._new(logger=self._logger, **state)

    def create_optimization_profile(self):
        return IOptimizationProfile._new(shapes={}, values={})

    def build_serialized_network(self, network, config):
        if why := _obstacles(network, config):
            for line in why:
                self._logger.log(ERROR, line)
            return None
        _report_steps(vars(config).get("progress_monitor"), network)
        parser = network._parser()
        if parser is None:
            raise RuntimeError("the network's weights are gone with its parser: TensorRT would read freed memory")
        strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        settings = {
            "version": __version__,
            "gpu": NAME,
            "capability": cudart.capability(),
            "profiles": [profile._shapes for profile in config._profiles],
            "values": [profile._values for profile in config._profiles],
            "detailed": config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED,
            "version_compatible": config.get_flag(trt.BuilderFlag.VERSION_COMPATIBLE),
            "tf32": config.get_flag(trt.BuilderFlag.TF32),
            "strongly_typed": bool(network._flags & strongly_typed),
            "optimization_level": config.builder_optimization_level,
            "avg_timing_iterations": config.avg_timing_iterations,
            "tiling_optimization_level": config._tiling.name if hasattr(trt, "TilingOptimizationLevel") else "NONE",
            "max_aux_streams": config.max_aux_streams,
            "hardware_compatibility": config.hardware_compatibility_level.name,
            "limits": {pool.name: size for pool, size in config._limits.items()},
            "plugins": sorted(network._plugins),
            "refit": _refit_mode(config),
            "stripped": config.get_flag(trt.BuilderFlag.STRIP_PLAN),
            "streaming": config.get_flag(trt.BuilderFlag.WEIGHT_STREAMING),
        }
        kept = {each.name for each in network._outputs} if failing("wrong_fusions") else set()
        is_wrong = failing("wrong_sums") or failing("wrong_fusions")
        content = _with_wrong_sums(parser._content, kept) if is_wrong else parser._content
        if config.get_flag(trt.BuilderFlag.STRIP_PLAN):
            content = _without_weights(content)
        if config._cache:
            layers = describe_layers(onnx.load_model_from_string(parser._content), settings)
            level = config.builder_optimization_level  # another level tries other kernels
            timings = {f"{layer['Name']}, level {level}": 0.01 for layer in layers}
            if (
                config.get_flag(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
                and timings.keys() - config._cache._timings.keys()
            ):
                self._logger.log(ERROR, "Error Code 2: Internal Error (Assertion !errorOnMiss failed. )")
                return None
            config._cache._timings |= timings
        return _plan_of(settings, content)


def _plan_of(settings, content):
    kernels = KERNELS_OF_STRIPPED if settings["stripped"] and not failing("few_kernels") else KERNELS
    header = json.dumps(settings | {"kernels": kernels, "size": len(content)}).encode()
    return IHostMemory._holding(MAGIC + len(header).to_bytes(4, "little") + header + bytes(kernels) + content)


def _refit_mode(config) -> str:
    """Return how weights may be put in later: identical ones, if a plan is stripped and nothing else is said."""
    flags = trt.BuilderFlag
    if config.get_flag(flags.REFIT):
        return "REFIT"
    return "REFIT_IDENTICAL" if {flags.REFIT_IDENTICAL, flags.STRIP_PLAN} & config._flags else ""


def _refittable(graph) -> list[onnx.TensorProto]:
    """Return the weights that can be put in later. Shapes and indices are used while an engine is built."""
    return [tensor for tensor in graph.initializer if DTYPES.get(tensor.data_type) in FLOATS]


def _without_weights(content: bytes) -> bytes:
    model = onnx.load_model_from_string(content)
    for tensor in _refittable(model.graph):
        for values in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(values)
    return model.SerializeToString()


def _with_wrong_sums(content: bytes, kept: set[str]) -> bytes:
    """Compute no number where a sum takes what a product of rounded numbers makes: 10.6 does so on an H200, in fp8 that
    is beyond float16. Whether a barrier helps there was not tried: only in `wrong_fusions` it does."""
    model = onnx.load_model_from_string(content)
    nodes, written = list(model.graph.node), list[onnx.NodeProto]()
    makers = {name: node for node in nodes for name in node.output}
    added = {name for node in nodes if node.op_type == "Add" for name in node.input}
    for node in nodes:
        written.append(node)
        source = makers.get(node.input[0]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
        if source is not None and source.op_type == "DequantizeLinear" and node.output[0] in added - kept:
            name, node.output[0] = node.output[0], f"{node.output[0]}.right"
            for kind, source, target in (
                ("Abs", "right", ".size"),
                ("Neg", "size", ".negative"),
                ("Log", "negative", ""),
            ):
                written.append(onnx.helper.make_node(kind, [f"{name}.{source}"], [f"{name}{target}"]))
    del model.graph.node[:]
    model.graph.node.extend(written)
    return model.SerializeToString()


def _obstacles(network, config) -> list[str]:
    usage = "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error ({} In validate at /_src/network.cpp:1)"
    if not network._outputs:
        return [usage.format("Network must have at least one output.")]
    if not config._profiles:
        return [usage.format("Network has dynamic or shape inputs, but no optimization profile has been defined.")]
    inputs = map(network.get_input, range(network.num_inputs))
    for tensor, (number, profile) in itertools.product(inputs, enumerate(config._profiles)):
        held = profile._values.get(tensor.name)
        if tensor.is_shape_tensor and (held is None or len(held[0]) != int(np.prod(tensor.shape))):
            what = f"Optimization profile {number} is missing values for shape input tensor {tensor.name}."
            return [usage.format(what)]
        if tensor.is_shape_tensor:
            continue
        wanted = profile._shapes.get(tensor.name)
        if wanted is None:
            return [usage.format(f"Optimization profile is missing values for shape input {tensor.name}.")]
        fixed = [size for size in zip(tensor.shape, *wanted, strict=True) if size[0] != -1]
        if any(len(set(sizes)) > 1 for sizes in fixed):
            why = f"has static dimensions that don't match kOPT dimensions in profile index {number}."
            return [usage.format(f"Input tensor {tensor.name} {why}")]
    lacking = [
        words for kind, (since, words) in HARDWARE.items() if kind in network._types and cudart.capability() < since
    ]
    if lacking:
        return [f"IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error ({lacking[0]})"]
    lean = {trt.BuilderFlag.VERSION_COMPATIBLE, trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME} & config._flags
    if failing("no_lean_runtime") and lean == {trt.BuilderFlag.VERSION_COMPATIBLE}:
        # Seen with 10.6 on an H200, without its words: these are of 10.2, of another library that is missing (pull
        # request 2996 of pytorch/TensorRT).
        name = f"libnvinfer_lean.so.{__version__.split('.')[0]}"
        why = f"Unable to load library: {name}: {name}: cannot open shared object file: No such file or directory"
        return [f"IBuilder::buildSerializedNetwork: Error Code 6: API Usage Error ({why})"]
    if failing("out_of_memory_build"):
        return [line.format(1 << 34) for line in OUT_OF_MEMORY]
    if failing("kernels_below_4") and config.builder_optimization_level < 4:
        # 10.6 said so on an H200 of MobileNetV3 in int8, at levels 0 to 3, and built it at level 4.
        why = "Assertion type() == expectedDataType<T>() failed. "
        return [f"[weightsPtr.h::values::181] Error Code 2: Internal Error ({why})"]
    if failing("build_none"):
        why = "Could not find any implementation for node conv1 due to insufficient workspace. See verbose log."
        return [f"IBuilder::buildSerializedNetwork: Error Code 10: Internal Error ({why})"]
    return []


class Runtime(Simulated, real=trt.Runtime):
    engine_host_code_allowed = False

    def __init__(self, logger):
        self._logger = logger

    def deserialize_cuda_engine(self, source):
        read = _slices_of(source) if PLAIN["buffer"](source) else _stream_of(source)
        call = "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion"
        if read(len(MAGIC)) != MAGIC:
            return self._refuse(f"{call} magicTagRead == kMAGIC_TAG failed.Magic tag does not match)")
        settings = json.loads(read(int.from_bytes(read(4), "little")))
        compatible = settings["version_compatible"] and _runs_plans_of(settings["version"])
        if settings["version"] != __version__ and not compatible:
            return self._refuse(
                f"{call} stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current "
                f"Version: {__version__}, Serialized Engine Version: {settings['version']})"
            )
        if settings["version_compatible"] and not self.engine_host_code_allowed:
            return self._refuse("Plan contains host code, and IRuntime::setEngineHostCodeAllowed was not called.")
        read(settings["kernels"])
        content = read(settings["size"])
        if len(content) < settings["size"]:
            return self._refuse(f"{call} blobSize == readSize failed.)")
        if failing("deserialize_none"):
            return self._refuse("IRuntime::deserializeCudaEngine: Error Code 2: Internal Error (provoked)")
        model = onnx.load_model_from_string(content)
        for tensor in _refittable(model.graph) if settings["stripped"] else ():  # what is there until it is refitted
            tensor.raw_data = b"\xa5" * _nbytes(tensor)
        streamable = sum(map(_nbytes, _refittable(model.graph))) if settings["streaming"] else 0
        on_device = len(content) if not settings["streaming"] else 0  # NvInfer.h: all weights are on the host then
        weights = _DeviceMemory(on_device)
        if weights.address is None:
            return self._refuse(*[line.format(on_device) for line in OUT_OF_MEMORY])
        lacks_own = set(settings["plugins"]) - _registered_by_libraries()
        if lacks_own or (any(map(_is_plugin, model.graph.node)) and not _registry["plugins"]):
            why = "Cannot deserialize plugin since corresponding IPluginCreator not found in Plugin Registry"
            return self._refuse(f"{call} creator failed.{why})")
        state = {"model": model, "settings": settings, "logger": self._logger, "weights": weights}
        return ICudaEngine._new(**state, streamable=streamable, budget=streamable, contexts=weakref.WeakSet())

    def _refuse(self, *why):
        for line in why:
            self._logger.log(ERROR, line)


def _nbytes(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _runs_plans_of(version: str) -> bool:
    """Tell whether this version runs version-compatible plans of another: NVIDIA's support matrix of 11.4.1 allows
    earlier versions of the same major one, 10 on 11, and 8 on 10."""
    there, here = (tuple(map(int, each.split("."))) for each in (version, __version__))
    return there <= here and (there[0], here[0]) in {(10, 10), (11, 11), (10, 11), (8, 10)}


def with_version(plan: bytes, version: str) -> bytes:
    """Return a plan as another version would have written it."""
    start = len(MAGIC) + 4
    end = start + int.from_bytes(plan[len(MAGIC) : start], "little")
    header = json.dumps(json.loads(plan[start:end]) | {"version": version}).encode()
    return MAGIC + len(header).to_bytes(4, "little") + header + plan[end:]


def _stream_of(reader):
    """Read through C++'s interface, as TensorRT does, so that the bindings decide how Python is called."""
    read_slot, seek_slot = 4, 5
    itself, methods = _virtual(reader)
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    raw_read = ctypes.PYFUNCTYPE(size, pointer, pointer, size, pointer)(methods[read_slot])
    raw_seek = ctypes.PYFUNCTYPE(ctypes.c_bool, pointer, size, ctypes.c_int)(methods[seek_slot])
    position = 0

    def read(wanted):
        nonlocal position
        if not raw_seek(itself, position, int(trt.SeekPosition.SET)):
            return b""
        target = ctypes.create_string_buffer(wanted)
        got = raw_read(itself, ctypes.addressof(target), len(target), None)
        position += got
        return target.raw[:got]

    return read


def _report_to(profiler, name, milliseconds):
    """Report through C++'s interface as well. Since TensorRT 11 it begins with functions that tell its version."""
    itself, methods = _virtual(profiler)
    slot = 4 if int(__version__.split(".")[0]) >= 11 else 0
    ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float)(methods[slot])(
        itself, name.encode(), milliseconds
    )


def _report_steps(monitor, network) -> None:
    """Report phases through C++'s interface, with the names of a real builder, which need not listen to the answers:
    after a False, 107 further steps came, over 47 s (seen with 10.6 on an H200)."""
    if monitor is None:
        return
    itself, methods = _virtual(monitor)
    text, number = ctypes.c_char_p, ctypes.c_int32
    start = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, text, text, number)(methods[4])
    step = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, text, number)(methods[5])
    finish = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, text)(methods[6])
    whole, inner = b"Building engine", b"Timing graph nodes"
    count = 1000 if failing("slow_build") else len(network._nodes)
    start(itself, whole, None, 2)
    start(itself, inner, whole, count)
    for index in range(count):
        time.sleep(0.05 * failing("slow_build"))
        step(itself, inner, index)
    finish(itself, inner)
    step(itself, whole, 0)
    finish(itself, whole)


def _virtual(thing):
    """Return the address and the functions by which C++ knows an object whose class derives from the bindings'."""
    itself = ctypes.c_void_p.from_address(id(thing) + object.__basicsize__).value
    return itself, ctypes.cast(ctypes.c_void_p.from_address(itself).value, ctypes.POINTER(ctypes.c_void_p))


def _slices_of(buffer):
    view, position = memoryview(buffer), 0

    def read(wanted):
        nonlocal position
        start, position = position, position + wanted
        return bytes(view[start:position])

    return read


class ICudaEngine(Simulated, real=trt.ICudaEngine):
    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors())

    @property
    def num_layers(self) -> int:
        return len(describe_layers(self._model, self._settings)) * self.num_optimization_profiles

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._settings["profiles"])

    @property
    def device_memory_size_v2(self) -> int:
        """Return a size: the engine pretends that its scratch memory holds the largest input twice."""
        largest = max(
            sum(8 * int(np.prod(high)) for _, _, high in profile.values()) for profile in self._settings["profiles"]
        )
        return largest + self.weight_streaming_scratch_memory_size * (self._budget < self._streamable)

    @property
    def refittable(self) -> bool:
        return bool(self._settings["refit"])

    @property
    def streamable_weights_size(self) -> int:
        return self._streamable

    @property
    def weight_streaming_scratch_memory_size(self) -> int:
        """Return a size: the engine pretends to stream pieces of 4 KiB, each while the last one is in use."""
        return 2 * 4096 if self._streamable else 0

    def get_weight_streaming_automatic_budget(self):
        """Return what the bindings do of it: pyCore.cpp converts it to an int32_t."""
        _, free, _ = cudart.cudaMemGetInfo()
        return ctypes.c_int32(min(free, self._streamable)).value

    @property
    def weight_streaming_budget_v2(self) -> int:
        return self._budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, budget):
        """NvInferRuntime.h: no budget below zero, and none while there are contexts. The bindings drop the answer."""
        if failing("budget_refused") or budget < 0 or self._contexts:
            why = "Parameter check failed, condition: gpuMemoryBudget >= 0 && no active contexts."
            call = "ICudaEngine::setWeightStreamingBudgetV2"
            return self._logger.log(ERROR, f"{call}: Error Code 3: API Usage Error ({why})")
        self._budget = min(budget, self._streamable)
        self._weights = None
        self._weights = _DeviceMemory(self._budget)
        if self._weights.address is None:
            self._budget = self._streamable
            for line in OUT_OF_MEMORY:
                self._logger.log(ERROR, line.format(budget))

    def create_serialization_config(self):
        return ISerializationConfig._new(flags=set())

    def serialize_with_config(self, config):
        flags, settings = trt.SerializationFlag, dict(self._settings)
        content, settings["stripped"] = self._model.SerializeToString(), False
        if config.get_flag(flags.EXCLUDE_WEIGHTS):
            content, settings["stripped"] = _without_weights(content), True
        elif hasattr(flags, "INCLUDE_REFIT") and not config.get_flag(flags.INCLUDE_REFIT):
            settings["refit"] = ""
        return _plan_of(settings, content)

    def get_tensor_name(self, index):
        return list(self._tensors())[index]

    def get_tensor_mode(self, name):
        is_input = name in self._settings["profiles"][0] or self.is_shape_inference_io(name)
        return trt.TensorIOMode.INPUT if is_input else trt.TensorIOMode.OUTPUT

    def is_shape_inference_io(self, name):
        return name in self._settings["values"][0]

    def get_tensor_location(self, name):
        places = trt.TensorLocation
        return places.HOST if self.is_shape_inference_io(name) else places.DEVICE

    def get_tensor_shape(self, name):
        return self._tensors()[name].shape

    def get_tensor_dtype(self, name):
        return self._tensors()[name].dtype

    def get_tensor_profile_shape(self, name, profile_index):
        return [trt.Dims(shape) for shape in self._settings["profiles"][profile_index][name]]

    def create_engine_inspector(self):
        return EngineInspector._new(engine=self)

    def create_execution_context(self, strategy=trt.ExecutionContextAllocationStrategy.STATIC):
        """NvInferRuntime.h: with USER_MANAGED the user provides the memory, before the first run."""
        is_users = strategy == trt.ExecutionContextAllocationStrategy.USER_MANAGED
        scratch = _DeviceMemory(0 if is_users else self.device_memory_size_v2)
        if scratch.address is None or failing("out_of_memory_run"):
            for line in OUT_OF_MEMORY:
                self._logger.log(ERROR, line.format(self.device_memory_size_v2))
            return None
        context = IExecutionContext._new(
            engine=self, scratch=scratch, users=None, logger=self._logger, shapes={}, addresses={}, unprepared=True
        )
        context._users_memory = is_users
        self._contexts.add(context)
        return context

    def _tensors(self) -> dict[str, ITensor]:
        return {proto.name: ITensor._new(proto=proto, holds_sizes=False) for proto in self._protos()}

    def _protos(self) -> list[onnx.ValueInfoProto]:
        graph = self._model.graph
        weights = {tensor.name for tensor in graph.initializer}
        return [tensor for tensor in (*graph.input, *graph.output) if tensor.name not in weights]

    @functools.cached_property
    def _session(self):
        return open_as_written(twin_of(self._model) or self._model)


class ISerializationConfig(Simulated, real=trt.ISerializationConfig):
    def set_flag(self, flag):
        self._flags.add(flag)
        return True

    def clear_flag(self, flag):
        self._flags.discard(flag)
        return True

    def get_flag(self, flag):
        return flag in self._flags


class Refitter(Simulated, real=trt.Refitter):
    def __init__(self, engine, logger):
        self._engine, self._logger, self._given = engine, logger, {}
        if not engine.refittable:
            logger.log(ERROR, "createInferRefitter: Error Code 3: API Usage Error (The engine is not refittable.)")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def get_all_weights(self):
        return [tensor.name for tensor in _refittable(self._engine._model.graph)]

    def get_missing_weights(self):
        return [name for name in self.get_all_weights() if name not in self._given]

    def refit_cuda_engine(self):
        if failing("not_refitted") or self.get_missing_weights():
            self._logger.log(ERROR, "IRefitter::refitCudaEngine: Error Code 4: API Usage Error (missing weights)")
            return False
        added = {name for node in self._engine._model.graph.node if node.op_type == "Gemm" for name in node.input[2:]}
        for tensor in _refittable(self._engine._model.graph):
            tensor.CopyFrom(self._given[tensor.name])
            if failing("bias_lost") and tensor.name in added:  # NVIDIA's known issue of REFIT
                tensor.raw_data = bytes(_nbytes(tensor))
        vars(self._engine).pop("_session", None)
        return True


class OnnxParserRefitter(Simulated, real=trt.OnnxParserRefitter):
    """ModelRefitter.cpp of onnx-tensorrt: it looks each weight of the engine up by its name, and wants all of them."""

    def __init__(self, refitter, logger):
        self._refitter, self._logger, self._errors = refitter, logger, []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index):
        return self._errors[index]

    def refit_from_file(self, model):
        try:
            graph = onnx.load(model).graph
        except Exception:  # protobuf's, of which there are two implementations, or that of a missing file
            return self._refuse('fileLoadSuccess && "Failed to parse the ONNX model!"', "MODEL_DESERIALIZE_FAILED")
        found = {tensor.name: tensor for tensor in graph.initializer}
        wanted = {tensor.name: tensor for tensor in _refittable(self._refitter._engine._model.graph)}
        for name in wanted.keys() & found.keys():
            if (found[name].dims, found[name].data_type) != (wanted[name].dims, wanted[name].data_type):
                words = 'mRefitter->setNamedWeights(name, std::move(weights)) && "Failed to set named weights"'
                return self._refuse(words, "REFIT_FAILED")
            self._refitter._given[name] = found[name]
        if wanted.keys() - found.keys():
            words = 'successfullyRefittedWeights == numberOfWeightsToRefit && "Failed to refit all the weights."'
            return self._refuse(words, "REFIT_FAILED")
        return True

    def _refuse(self, why, code):
        self._errors.append(ParserError._new(description=why, code=getattr(trt.ErrorCode, code), node=onnx.NodeProto()))
        return False


class EngineInspector(Simulated, real=trt.EngineInspector):
    def get_engine_information(self, format):
        _require_json(format)
        engine = self._engine
        if engine.num_optimization_profiles > 1 and not DESCRIBES_PROFILES:
            return ""
        layers, context = self._layers(), vars(self).get("execution_context")
        for layer in layers if context and engine._settings["detailed"] else ():
            layer["Name"] += _suffix(context.active_optimization_profile)
        return json.dumps({"Layers": layers} | describe_io(engine._protos(), engine._settings))

    def get_layer_information(self, layer_index, format):
        """Describe one layer as in the whole. The layers of a profile follow those of the one before. One of an earlier
        profile than the context's is not described (seen with 10.6 on an H200, as all of this)."""
        _require_json(format)
        layers, context = self._layers(), vars(self).get("execution_context")
        profile, index = divmod(layer_index, len(layers))
        if context and profile < context.active_optimization_profile:
            why = "Assertion index < nbSlots failed. invalid encoded reference to a slot"
            self._engine._logger.log(ERROR, f"[slot.cpp::decode::51] Error Code 2: Internal Error ({why})")
            return ""
        if isinstance(layers[index], dict):
            layers[index]["Name"] += _suffix(profile)
        return json.dumps(layers[index])

    def _layers(self) -> list:
        layers = describe_layers(self._engine._model, self._engine._settings)
        if not self._shapes_are_known():
            for tensor in (tensor for layer in layers for tensor in (*layer["Inputs"], *layer["Outputs"])):
                tensor |= without_shapes(__version__)
        return layers if self._engine._settings["detailed"] else [layer["Name"] for layer in layers]

    def _shapes_are_known(self) -> bool:
        context = vars(self).get("execution_context")
        return context is not None and context.all_binding_shapes_specified


def _require_json(format) -> None:
    if format != trt.LayerInformationFormat.JSON:
        raise NotImplementedError("the simulation describes engines as JSON alone")


def _suffix(profile: int) -> str:
    """Return what follows the names of layers in another profile than the first, as Polygraphy's documents show it."""
    return f" [profile {profile}]" if profile else ""


class IExecutionContext(Simulated, real=trt.IExecutionContext):
    """NvInferRuntime.h: a new context is in profile 0; a profile is set before the shapes of inputs, on the stream of
    the runs or on one that is waited for; and it changes resources of layers with the next run."""

    profiler, enqueue_emits_profile = None, True

    @property
    def active_optimization_profile(self) -> int:
        return vars(self).get("_active", 0)

    def set_optimization_profile_async(self, profile_index, stream_handle):
        call = "IExecutionContext::setOptimizationProfileAsync: Error Code 3: API Usage Error (Parameter check failed,"
        if not 0 <= profile_index < self._engine.num_optimization_profiles or failing("profile_refused"):
            return self._refuse(f"{call} condition: profileIndex >= 0 && profileIndex < getNbOptimizationProfiles().)")
        self._active, self._switched_on = profile_index, int(stream_handle)
        self._shapes.clear()
        self._unprepared = True
        return True

    def _profile(self) -> dict:
        return self._engine._settings["profiles"][self.active_optimization_profile]

    @property
    def all_binding_shapes_specified(self) -> bool:
        return not self.infer_shapes()

    def infer_shapes(self):
        lacking = [name for name in self._profile() if name not in self._shapes]
        return lacking + [name for name in self._engine._settings["values"][0] if name not in self._addresses]

    def _values(self) -> dict[str, np.ndarray]:
        """Read the inputs that hold sizes from the memory of the host."""
        found, tensors = {}, self._engine._tensors()
        for name in self._engine._settings["values"][0]:
            found[name] = _at(self._addresses[name], tensors[name].shape, tensors[name].dtype, on_device=False)
        return found

    def _values_outside(self) -> str | None:
        for name, held in self._values().items():
            low, _, high = self._engine._settings["values"][self.active_optimization_profile][name]
            if not all(a <= b <= c for a, b, c in zip(low, held.ravel(), high, strict=True)):
                return f"input {name} holds {held.tolist()}, which is not within {low} and {high}"
        return None

    def set_input_shape(self, name, shape):
        shape, profile = tuple(shape), self._profile()
        call = "IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed,"
        if name not in profile:
            return self._refuse(f"Given invalid tensor name: {name}. Get valid tensor names with getIOTensorName()")
        low, _, high = profile[name]
        if len(shape) != len(low) or not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            return self._refuse(
                f"{call} condition: satisfyProfile. Set dimension {list(shape)} for tensor {name} does not satisfy any "
                f"optimization profiles. Valid range for profile {self.active_optimization_profile}: {low}..{high}.)"
            )
        self._unprepared |= self._shapes.get(name) != shape
        self._shapes[name] = shape
        return True

    def get_tensor_shape(self, name):
        if name in self._shapes:
            return trt.Dims(self._shapes[name])
        tensors = self._engine._tensors()
        known = {
            axis.dim_param: size
            for given, shape in self._shapes.items()
            for axis, size in zip(_axes(tensors[given]), shape, strict=True)
            if axis.dim_param
        }
        sizes = [axis.dim_value or known.get(axis.dim_param, -1) for axis in _axes(tensors[name])]
        is_unknown = not tensors[name]._proto.type.tensor_type.HasField("shape")
        if (is_unknown or -1 in sizes) and self.all_binding_shapes_specified:
            inferred = _inferred(self._engine._model, self._shapes, self._values(), name)
            known = [-1] * len(inferred) if is_unknown else sizes
            sizes = [more if size == -1 else size for size, more in zip(known, inferred, strict=True)]
        if failing("wrong_shape") and self._engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT:
            sizes[0] += 1
        return trt.Dims(sizes)

    def get_max_output_size(self, name):
        return 4 * math.prod(self.get_tensor_shape(name))

    def set_device_memory(self, memory, size):
        """NvInferRuntime.h: at least as large as the engine says, and in use until the inference is complete. The
        function returns nothing: what is wrong is logged."""
        wanted = self._engine.device_memory_size_v2
        call = "IExecutionContext::setDeviceMemoryV2: Error Code 3: API Usage Error (Parameter check failed, condition:"
        if size < wanted:
            return self._logger.log(ERROR, f"{call} size >= mEngine.getDeviceMemorySizeV2(). {size} < {wanted})")
        if not self._users_memory:
            return self._logger.log(ERROR, f"{call} allocationStrategy == USER_MANAGED.)")
        cudart.require_memory(int(memory), size, on_device=True)
        self._users = int(memory)

    def set_output_allocator(self, name, output_allocator):
        if name not in self._engine._tensors() or self._engine.get_tensor_mode(name) != trt.TensorIOMode.OUTPUT:
            return self._refuse(f"Given invalid tensor name: {name}. Get valid tensor names with getIOTensorName()")
        vars(self).setdefault("_allocators", {})[name] = output_allocator
        return True

    def set_tensor_address(self, name, memory):
        if name not in self._engine._tensors():
            return self._refuse(f"Given invalid tensor name: {name}. Get valid tensor names with getIOTensorName()")
        self._addresses[name] = int(memory)
        return True

    def execute_async_v3(self, stream_handle):
        call = "IExecutionContext::enqueueV3: Error Code"
        allocators = vars(self).get("_allocators", {})
        for name in self._engine._tensors():
            if not self._addresses.get(name) and name not in allocators:
                return self._refuse(
                    f"{call} 3: API Usage Error (Parameter check failed, condition: "
                    f"mContext.profileObliviousBindings.at(profileObliviousIndex). Address is not set for {name}.)"
                )
        if missing := self.infer_shapes():
            return self._refuse(f"{call} 3: API Usage Error (Not all shapes are specified: {', '.join(missing)}.)")
        if self._users_memory and self._users is None:
            return self._refuse(f"{call} 3: API Usage Error (Parameter check failed, condition: device memory is set.)")
        if outside := self._values_outside():
            return self._refuse(f"{call} 3: API Usage Error (Runtime shape tensor out of profile: {outside}.)")
        if failing("execute_false"):
            return self._refuse(f"{call} 1: Cuda Runtime (an illegal memory access was encountered)")
        sizes = {name: (self._shapes[name][0], tuned[0], most[0]) for name, (_, tuned, most) in self._profile().items()}
        beyond = any(size > tuned for size, tuned, _ in sizes.values())
        largest = any(size == most for size, _, most in sizes.values())
        wrong = (failing("wrong_beyond_tuned") and beyond) or (failing("wrong_at_largest") and largest)
        if failing("beyond_tuned") and beyond:  # in the words of 10.6 on an H200
            return self._refuse(
                f"{call} 1: Myelin ([cask.cpp:exec_with_offset:1448] Platform (Cuda) error)",
                "[checkMacros.cpp::catchCudaError::212] Error Code 1: Cuda Runtime (invalid argument)",
            )
        if error := cudart.unseen_error():  # of whatever call: CUDA does not tell whose it was
            return self._refuse(f"{call} 1: Cuda Runtime ({error})")
        growing = [name for name in self._engine._tensors() if -1 in self.get_tensor_shape(name)]
        if cudart.is_capturing(stream_handle) and (self._unprepared or growing or failing("not_capturable")):
            cudart.break_capture(stream_handle)
            return self._refuse(f"{call} 1: Cuda Runtime (operation not permitted when stream is capturing)")
        if vars(self).get("_switched_on", int(stream_handle)) != int(stream_handle):
            raise RuntimeError("the profile was set on another stream, which nobody waited for: undefined behavior")
        self._unprepared = False
        addresses, values = dict(self._addresses), {name: held.copy() for name, held in self._values().items()}
        if growing:
            cudart.cudaStreamSynchronize(stream_handle)  # the sizes are known once the work so far is done
            found = _shapes_of_outputs(self._engine, dict(self._shapes), addresses, values)
            for name in allocators:
                size = int(np.prod(found[name])) * self._engine.get_tensor_dtype(name).itemsize
                addresses[name] = _allocate_by(allocators[name], name, addresses.get(name, 0), size, stream_handle)
                if not addresses[name]:
                    return self._refuse(f"{call} 2: OutOfMemory (Requested size was {size} bytes for output {name}.)")
                _notify(allocators[name], name, found[name])
        work = functools.partial(_compute, self._engine, dict(self._shapes), addresses, values, wrong)
        work.scratch = self._users
        if self.profiler and self.enqueue_emits_profile:
            return self._run_and_report(int(stream_handle), work)
        cudart.enqueue(int(stream_handle), work)
        return True

    def _run_and_report(self, stream, work):
        """Wait for the work, and report invented times of the layers: the second takes twice as long as the first."""
        (before,) = cudart.cudaStreamSynchronize(stream)
        started = time.perf_counter()
        cudart.enqueue(stream, work)
        (after,) = cudart.cudaStreamSynchronize(stream)
        milliseconds = (time.perf_counter() - started) * 1000
        if int(before) or int(after):
            return self._refuse("IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime (profiling failed)")
        layers = describe_layers(self._engine._model, self._engine._settings)
        part = milliseconds / sum(range(len(layers) + 1))
        for number, layer in enumerate(layers, 1):
            _report_to(self.profiler, layer["Name"] + _suffix(self.active_optimization_profile), number * part)
        return True

    def _refuse(self, *why):
        for line in why:
            self._logger.log(ERROR, line)
        return False


def _axes(tensor):
    """Return the axes of a tensor. The ones that vary have names, by which outputs get the sizes of inputs."""
    return _axes_of(tensor._proto)


def _axes_of(proto):
    return proto.type.tensor_type.shape.dim


def _inferred(model, shapes, values, name) -> list[int]:
    """Infer the shape of an output whose axes have other names than the inputs': -1 where it depends on values that are
    on the device."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for held, array in values.items():
        fixed.graph.initializer.append(onnx.numpy_helper.from_array(array, held))
        fixed.graph.input.remove(next(tensor for tensor in fixed.graph.input if tensor.name == held))
    for tensor in (*fixed.graph.input, *fixed.graph.output):
        if tensor.name in shapes:
            for axis, size in zip(tensor.type.tensor_type.shape.dim, shapes[tensor.name], strict=True):
                axis.dim_value = size
        elif tensor.name == name:
            for axis in tensor.type.tensor_type.shape.dim:
                axis.Clear()
    del fixed.graph.value_info[:]
    found = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph.output
    return [axis.dim_value or -1 for tensor in found if tensor.name == name for axis in _axes_of(tensor)]


def _compute(engine, shapes, addresses, values, wrong) -> None:
    """Compute from device memory into device memory. The stream calls this when it is waited for."""
    session = engine._session
    feeds = _feeds(engine, shapes, addresses, values)
    names, settings = [output.name for output in session.get_outputs()], engine._settings
    is_tuned = settings["optimization_level"] == 4 or settings["max_aux_streams"] == 0
    time.sleep(0.005 * (failing("slow_untuned") and not is_tuned))
    for name, computed in zip(names, session.run(names, feeds), strict=True):
        if failing("wrong_tuned") and settings["max_aux_streams"] == 0:
            computed = computed * np.nan
        computed = np.zeros_like(computed) if wrong else computed
        target = _at(addresses[name], computed.shape, engine.get_tensor_dtype(name)).reshape(-1)
        written = computed.size - failing("unwritten_output")
        target[:written] = computed.reshape(-1)[:written]


def _feeds(engine, shapes, addresses, values) -> dict:
    given = {name: _at(addresses[name], shape, engine.get_tensor_dtype(name)) for name, shape in shapes.items()}
    return given | values


def _shapes_of_outputs(engine, shapes, addresses, values) -> dict:
    feeds = _feeds(engine, shapes, addresses, values)
    names = [output.name for output in engine._session.get_outputs()]
    return dict(zip(names, (array.shape for array in engine._session.run(names, feeds)), strict=True))


def _allocate_by(allocator, name, current, size, stream) -> int:
    """Ask for memory through C++'s interface, in the order of NvInferRuntime.h: reallocateOutput, which is older, then
    reallocateOutputAsync, then notifyShape."""
    itself, methods = _virtual(allocator)
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    kind = ctypes.PYFUNCTYPE(pointer, pointer, ctypes.c_char_p, pointer, number, number, pointer)
    return kind(methods[5])(itself, name.encode(), current, size, 256, int(stream)) or 0


def _notify(allocator, name, shape) -> None:
    itself, methods = _virtual(allocator)
    dims = _Dims(len(shape), (ctypes.c_int64 * 8)(*shape))
    kind = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Dims))
    kind(methods[6])(itself, name.encode(), ctypes.byref(dims))


class _Dims(ctypes.Structure):
    """C++'s Dims, of 64 bits since TensorRT 10."""

    _fields_ = (("nbDims", ctypes.c_int32), ("d", ctypes.c_int64 * 8))


def _at(address, shape, dtype, on_device=True) -> np.ndarray:
    array_type = np.dtype(ml_dtypes.bfloat16 if dtype == trt.DataType.BF16 else trt.nptype(dtype))
    size = int(np.prod(shape)) * array_type.itemsize
    if on_device:
        cudart.require_memory(address, size, on_device=True, status="cudaErrorIllegalAddress")
    elif cudart.is_on_device(address):
        raise RuntimeError("the host reads from the memory of the device: a real process would end here")
    return np.frombuffer((ctypes.c_ubyte * size).from_address(address), array_type).reshape(shape)


class _DeviceMemory:
    """The memory that C++ allocates for an object, for as long as it lives."""

    def __init__(self, size: int) -> None:
        _, self.address = cudart.cudaMalloc(size)
        if self.address is not None:
            weakref.finalize(self, cudart.cudaFree, self.address)
