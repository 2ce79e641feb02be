"""TensorRT 10 and 11, and TensorRT for RTX, which shares their API and builds without a GPU."""

import math
import mmap
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.facts import not_installed
from enginewright.core.params.build import Bound, BuildParams, InferenceParams, WeightsOnGPU
from enginewright.core.process import run_apart
from enginewright.core.progress import Phases
from enginewright.core.text import file_size, first_few
from enginewright.data.feeds import relative_error
from enginewright.engine.gpu import Stream, find_gpu, free_memory
from enginewright.engine.record import WEIGHTS, Layer, LayerTime, weights_of
from enginewright.engine.runtimes import tensorrt_library as nvidia
from enginewright.engine.runtimes.gpu_session import DeviceSession
from enginewright.engine.runtimes.runtime import WARM_UP, Arrays, Compiled, median_times
from enginewright.engine.runtimes.tensorrt_library import Library
from enginewright.graph.files import graph_bytes, graph_files
from enginewright.graph.interface import Blueprint

PLAN = "engine.plan"
OLDEST = {"tensorrt": (10, 3), "tensorrt_rtx": (1, 2)}  # the oldest versions that this module is written for
MOST_COMPRESSED = 8  # is how many times smaller than a graph its weights may be in a plan: in int4, of float32
THOROUGH, INTERNAL_ERROR = 4, "Internal Error"  # the level at which a build that fails so is tried again
UNLIKE = 0.3  # is the relative error between two batch sizes that no rounding leaves
SCARCE = 2 << 30  # bytes of free memory below which a failed build is told how few there were


class TensorRT(Library):
    """Build and run plans with one of NVIDIA's two libraries."""

    def missing(self) -> str | None:
        if absent := not_installed(self.name):
            return absent
        try:
            found = self.version()
        except (ImportError, OSError) as error:
            return f"{self.title} cannot be loaded ({error}): {self.install}"
        if tuple(map(int, found.split(".")[:2])) >= OLDEST[self.name]:
            return None
        oldest = ".".join(map(str, OLDEST[self.name]))
        return f"{self.title} {found} is too old, Enginewright is written for {oldest} and newer: {self.install}"

    def device(self) -> str:
        return "cuda"

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Compiled:
        """Build in a process of its own. Of 10.6's builder nothing but its process's end ends a build: told to stop, it
        took 107 further steps and 47 s on an H200."""
        # A new one can be sent there: this one may have a log, which is the library's.
        work = TensorRT(self.name).compile_here
        return run_apart(f"the build of {onnx}", work, onnx, blueprint, folder, longest=blueprint.longest)

    def compile_here(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Compiled:
        options = blueprint.build.tensorrt
        for path, name in zip(options.plugins, options.plugin_names, strict=True):
            shutil.copyfile(path, folder / name)  # an engine that needs them is of no use without
        plan, blueprint, *remarks = self._first_plan(onnx, blueprint, folder)
        if options.is_stripped and plan.nbytes > graph_bytes(onnx) // MOST_COMPRESSED:
            plan, blueprint, remark = self._smaller(plan, onnx, blueprint, folder)
            remarks.append(remark)
        if blueprint.build.tensorrt.is_stripped:  # likewise; the first file refers to the second by its name
            for file in graph_files(onnx):
                shutil.copyfile(file, folder / (WEIGHTS if file == onnx else file.name))
        (folder / PLAN).write_bytes(plan)
        gpu, targets = find_gpu(), options.compute_capabilities
        if gpu is None or (self.is_rtx and gpu.capability not in targets):
            return Compiled([], blueprint.build, "; ".join(filter(None, remarks)) or None)
        batch = blueprint.build.profile.batch
        if batch.opt < batch.max and (fault := self._fault_at_largest(folder, blueprint)):
            blueprint = replace(blueprint, build=blueprint.build.tuned_for_largest_batch)
            (folder / PLAN).write_bytes(self._plan(onnx, blueprint, folder))
            remarks.append(f"it is tuned for batch {batch.max}: tuned for {batch.opt}, it {fault}")
            if again := self._fault_at_largest(folder, blueprint):
                remarks.append(f"tuned for {batch.max} it {again}")
        return Compiled(self._layers(folder, blueprint), blueprint.build, "; ".join(filter(None, remarks)) or None)

    def _first_plan(self, onnx: Path, blueprint: Blueprint, folder: Path) -> tuple[Any, Blueprint, str]:
        """Return a plan. Up to level 3, 10.6 failed on an H200 on Convs in int8 before a HardSwish, as MobileNetV3 has
        them. From level 4 on it tries other kernels, too, and built them."""
        level = blueprint.build.tensorrt.optimization_level
        try:
            return self._plan(onnx, blueprint, folder), blueprint, ""
        except CompilerError as error:
            if level >= THOROUGH or INTERNAL_ERROR not in str(error):
                raise
            reason = self.log.reason()
        thorough = replace(blueprint, build=blueprint.build.at_level(THOROUGH))
        remark = f"it is built at optimization level {THOROUGH}, as {self.title} failed at {level} ({reason})"
        return self._plan(onnx, thorough, folder), thorough, remark

    def _fault_at_largest(self, folder: Path, blueprint: Blueprint) -> str:
        """Run the largest batch, and compare with the smallest. On an H200, 10.6 built engines in bf16 and fp8 that ran
        batch 33 and not 64, as they were tuned for 32: "Myelin (Platform (Cuda) error)". A detector in int8 was right
        at batch 1, and at 63 and 128 it found nothing. Too little memory is no fault of the engine."""
        batch = blueprint.build.profile.batch
        (session,) = self.load(folder, blueprint, InferenceParams(cuda_graph=False), requests=1)
        with closing(session):
            try:
                found, meant = (session.run(blueprint.example_of(size)) for size in (batch.max, batch.min))
            except EnginewrightError as error:
                if nvidia.MORE_MEMORY in str(error):
                    return ""
                if batch.opt == batch.max:
                    raise CompilerError(f"tuned for batch {batch.max} as well, {error}") from None
                return f"could not run {batch.max} ({error})"
        for name, rows in meant.items():
            alike = found[name].shape == (batch.max, *rows.shape[1:])
            is_compared = alike and rows.dtype.kind == "f" and np.isfinite(rows).all()
            if is_compared and not relative_error(np.subtract(found[name][: len(rows)], rows), rows) <= UNLIKE:
                return f"answered otherwise in a batch of {batch.max} than of {batch.min}"
        return ""

    def _plan(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Any:
        """Build a strongly typed network: the graph says which operator runs in which type."""
        trt = self.trt
        self.log.lines.clear()
        builder = self.started(trt.Builder, folder, blueprint.build)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = self._parse(network, onnx, blueprint.build)
        config = self._configure(builder, blueprint)
        free = math.inf if self.is_rtx else free_memory()
        with self._timing_cache(config, blueprint.build), closing(Phases(f"building for {self.title}")) as phases:
            config.progress_monitor = nvidia.new_monitor(trt, phases)
            plan = builder.build_serialized_network(network, config)
        if plan is None:
            # With 700 MB left, 10.6 said on an H200 "Cask (no further information)" and "invalid resource handle".
            scarce = f"Only {free / 1e6:.0f} MB of the GPU's memory were free: {nvidia.MORE_MEMORY}"
            why = self.why(scarce if free < SCARCE else "")
            kind = EnginewrightError if free < SCARCE else CompilerError
            raise kind(f"{self.title} cannot build {onnx}: {why}")
        del parser  # only now, since it holds the network's weights
        return plan

    def _smaller(self, stripped: Any, onnx: Path, blueprint: Blueprint, folder: Path) -> tuple[Any, Blueprint, str]:
        """Return the plan with its weights if that is smaller: of a tiny network, it had fewer kernels on an H200."""
        with_weights = replace(blueprint, build=blueprint.build.with_option("weights", "inside"))
        whole = self._plan(onnx, with_weights, folder)
        if whole.nbytes > stripped.nbytes:
            return stripped, blueprint, ""
        sizes = f"{file_size(whole.nbytes)}, and without {file_size(stripped.nbytes)}, as it has more kernels then"
        remark = f"it keeps its weights (build.tensorrt.weights: stripped): with them it takes {sizes}"
        return whole, with_weights, remark

    def load(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int
    ) -> Sequence[DeviceSession]:
        """Deserialize one engine; each request has a context and a stream of its own."""
        replays, sessions = inference.cuda_graph, []
        engine = self._opened(folder, blueprint, inference.weights_on_gpu_mb, requests)
        for _ in range(requests):
            context, stream = self._context(engine, replays), Stream()
            executor = nvidia.TensorRTExecutor(self, engine, context, blueprint, stream.handle, replays and self.is_rtx)
            sessions.append(DeviceSession(stream, executor, blueprint, replays and not self.is_rtx))
        return sessions

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Profile the calls. None replays a graph: each launches its kernels one by one and reports their times."""
        layers = [layer for layer in self._layers(folder, blueprint) if not layer.profile]  # that of the sizes to time
        engine = self._opened(folder, blueprint, inference.weights_on_gpu_mb)
        context, profiler, stream = self._context(engine), nvidia.new_profiler(self.trt), Stream()
        context.profiler = profiler
        executor = nvidia.TensorRTExecutor(self, engine, context, blueprint, stream.handle, replays=False)
        del context, engine  # only the session may hold them: it frees them in the right order
        with closing(DeviceSession(stream, executor, blueprint, replay=False)) as session:
            call = session.bind(feeds)
            return median_times(layers, [profiler.times_of(call) for _ in range(WARM_UP + calls)][WARM_UP:])

    def _parse(self, network: Any, onnx: Path, build: BuildParams) -> Any:
        trt = self.trt
        parser = trt.OnnxParser(network, self.log)
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)  # the plugin would bind an engine to this version
        if build.tensorrt.plugins and hasattr(trt.OnnxParserFlag, "ENABLE_PLUGIN_OVERRIDE"):  # since 10.15
            # A user's plugin may take over an operator of ONNX, which ONNX Runtime can execute, too.
            parser.set_flag(trt.OnnxParserFlag.ENABLE_PLUGIN_OVERRIDE)
        if not parser.parse_from_file(str(onnx)):
            why = self.with_advice(nvidia.errors_of(parser)) or self.why()
            raise CompilerError(f"{self.title} cannot read {onnx}: {why}")
        return parser

    def _configure(self, builder: Any, blueprint: Blueprint) -> Any:
        trt, build = self.trt, blueprint.build
        options, config = build.tensorrt, builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that the layers can be inspected
        config.builder_optimization_level = options.optimization_level
        if options.workspace_mb is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mb << 20)
        if not build.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if options.tiling_optimization_level != "none":
            levels = getattr(trt, "TilingOptimizationLevel", None)  # since 10.8
            level = self._offered(levels, "tiling_optimization_level", options.tiling_optimization_level)
            self._set(config, "tiling_optimization_level", level)
        if options.max_aux_streams is not None:
            self._set(config, "max_aux_streams", options.max_aux_streams)
        if options.build_route:
            if not hasattr(config, "build_route"):
                raise EnginewrightError(f"{self.title} {self.version()} has no build.tensorrt.build_route: drop it")
            self._set(config, "build_route", options.build_route)
        if self.is_rtx:
            config.num_compute_capabilities = len(options.compute_capabilities)
            for index, capability in enumerate(options.compute_capabilities):
                config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + capability.replace(".", "")), index)
        else:
            levels, name = trt.HardwareCompatibilityLevel, options.hardware_compatibility
            config.hardware_compatibility_level = self._offered(levels, "hardware_compatibility", name)
            config.avg_timing_iterations = options.avg_timing_iterations
            if options.version_compatible:
                config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        if options.is_stripped:
            config.set_flag(trt.BuilderFlag.STRIP_PLAN)
        if options.refit:
            config.set_flag(trt.BuilderFlag.REFIT)
        elif options.is_stripped:  # for the weights of the build alone: NVIDIA warns that REFIT can lose a bias
            config.set_flag(trt.BuilderFlag.REFIT_IDENTICAL)
        if options.streaming:
            config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
        for number, sizes in enumerate(build.all_profiles):
            profile = builder.create_optimization_profile()
            for spec in blueprint.interface.inputs:
                ends = [sizes.at(bound) for bound in get_args(Bound)]
                if spec.values:
                    profile.set_shape_input(spec.name, *map(spec.values_at, ends))
                else:
                    profile.set_shape(spec.name, *map(spec.at, ends))
            if config.add_optimization_profile(profile) != number:
                place = f"profiles.{number - 1}" if number else "profile"
                raise EnginewrightError(f"{self.title} refuses build.{place} {sizes}: {self.why()}")
        return config

    def _set(self, config: Any, option: str, value: Any) -> None:
        """Set an option that TensorRT may refuse. It then keeps the value that it had, and says so in the log alone."""
        setattr(config, option, value)
        if getattr(config, option) != value:
            raise EnginewrightError(f"{self.title} {self.version()} refuses build.tensorrt.{option}: {self.why()}")

    def _offered(self, kinds: Any, option: str, choice: str) -> Any:
        """Return what the bindings call a choice. Earlier versions lack some of them."""
        if hasattr(kinds, choice.upper()):
            return getattr(kinds, choice.upper())
        others = [name.lower() for name in getattr(kinds, "__members__", {"NONE": None})]
        raise EnginewrightError(
            f"{self.title} {self.version()} does not have build.tensorrt.{option}: {choice}: set it to "
            f"{' or '.join(others)}, or install a later version: {self.install}"
        )

    @contextmanager
    def _timing_cache(self, config: Any, build: BuildParams) -> Iterator[None]:
        """Give the builder the timings of earlier builds on this machine, and add the ones that it measures."""
        gpu = find_gpu()
        if not build.tensorrt.timing_cache or self.is_rtx or gpu is None:
            yield
            return
        path: Path | None = None
        with _warning_only("read"):
            library = f"{self.name}-{self.version()}"
            path = nvidia.timing_cache_path(gpu.device_name, gpu.capability, gpu.driver, library)
            with nvidia.locked(path):
                known = nvidia.read_timing_cache(path)
            if known and not config.set_timing_cache(config.create_timing_cache(known), ignore_mismatch=False):
                print(f"{self.title} refuses the timings of earlier builds: {self.why()}", file=sys.stderr)
                known = b""
            if not known:
                config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
        yield
        with _warning_only("kept"):
            if path and (measured := config.get_timing_cache()):
                with nvidia.locked(path):
                    others = nvidia.read_timing_cache(path)  # another build may have written since
                    if others and not measured.combine(config.create_timing_cache(others), ignore_mismatch=False):
                        nvidia.set_aside(path)
                    nvidia.write_timing_cache(path, bytes(measured.serialize()))

    def _opened(self, folder: Path, blueprint: Blueprint, on_gpu: WeightsOnGPU = "auto", scratches: int = 1) -> Any:
        """Deserialize an engine, put in the weights that its plan lacks, and say how much of them the GPU holds."""
        options, engine = blueprint.build.tensorrt, self.deserialized(folder / PLAN, blueprint.build)
        if options.is_stripped:
            self.put_in(engine, weights_of(folder))
        if options.streaming:
            self._share_weights(engine, on_gpu, scratches)
        return engine

    def put_in(self, engine: Any, onnx: Path) -> None:
        trt, what = self.trt, f"{self.title} cannot take the weights of {onnx}"
        self.log.lines.clear()
        try:
            refitter = trt.Refitter(engine, self.log)
        except TypeError:  # as in `started`
            raise EnginewrightError(f"{what}: {self.why()}") from None
        parser = trt.OnnxParserRefitter(refitter, self.log)  # it holds the weights until they are in the engine
        if not parser.refit_from_file(str(onnx)):
            raise EnginewrightError(f"{what}: {nvidia.errors_of(parser) or self.why()}")
        if not refitter.refit_cuda_engine():
            missing = refitter.get_missing_weights()
            raise EnginewrightError(f"{what}: {f'it lacks {first_few(missing)}' if missing else self.why()}")

    def _share_weights(self, engine: Any, share: WeightsOnGPU, scratches: int) -> None:
        """Say how many bytes of the weights stay on the GPU, which must be known before there is a context."""
        size = budget = engine.streamable_weights_size
        if share == "auto":  # TensorRT's own choice reaches Python in 32 bits, too few for what is to be streamed
            scratch = engine.device_memory_size_v2 + engine.weight_streaming_scratch_memory_size
            budget = free_memory() * 4 // 5 - scratches * scratch  # a fifth is for inputs, outputs and others
        elif share != "all":
            budget = share * 1_000_000
        budget = min(max(budget, 0), size)
        engine.weight_streaming_budget_v2 = budget
        if engine.weight_streaming_budget_v2 > budget:  # the bindings do not pass on whether it was accepted
            raise EnginewrightError(f"{self.title} refuses inference.weights_on_gpu_mb {share}: {self.why()}")
        if budget < size:
            held = f"{file_size(budget)} of {file_size(size)} of weights stay on the GPU"
            print(f"{held}, the others are streamed (inference.weights_on_gpu_mb)", file=sys.stderr)

    def deserialized(self, plan: Path, build: BuildParams) -> Any:
        self.log.lines.clear()
        runtime = self.started(self.trt.Runtime, plan.parent, build)
        if not self.is_rtx and build.tensorrt.version_compatible:
            runtime.engine_host_code_allowed = True  # such a plan contains its own runtime; its hash has been checked
        with plan.open("rb") as file:  # mapped, so that a large plan is not held in memory beside the engine made of it
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if plan.stat().st_size else b""
            engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            again = "Run `dvc repro` to build it again"
            raise EnginewrightError(f"{self.title} cannot load {plan}: {self.why(again)}")
        return engine

    def _context(self, engine: Any, replay: bool = False) -> Any:
        trt = self.trt
        if self.is_rtx:
            settings, kernels = engine.create_runtime_config(), trt.DynamicShapesKernelSpecializationStrategy
            # By default it starts with slower kernels, and compiles the right ones for a shape while it is being timed.
            settings.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
            if replay:
                settings.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            context = engine.create_execution_context(settings)
        else:
            context = engine.create_execution_context()
        if context is None:
            raise EnginewrightError(f"{self.title} cannot make the engine ready: {self.why()}")
        return context

    def _layers(self, folder: Path, blueprint: Blueprint) -> list[Layer]:
        """Inspect the layers of each profile at the sizes that it is tuned for: without sizes, types are hidden. The
        profiles have equally many layers, one's after the other's. Of several, 10.6 describes no engine as a whole, and
        a layer only in its own profile: in others it gives nothing, and crashed once."""
        engine, json = self._opened(folder, blueprint), self.trt.LayerInformationFormat.JSON
        profiles, found = blueprint.build.all_profiles, []
        many, rest = divmod(engine.num_layers, len(profiles))
        if rest:
            print(f"{self.title} {self.version()} does not tell which layers are of which profile", file=sys.stderr)
            return []
        with closing(Stream()) as stream:
            for number, profile in enumerate(profiles):
                context, inspector = self._context(engine), engine.create_engine_inspector()
                nvidia.set_profile(self, context, number, stream.handle)
                tuned = blueprint.interface.zeros(profile.at("opt"))  # they stay while the context reads from them
                for spec in blueprint.interface.inputs:
                    if spec.values:
                        context.set_tensor_address(spec.name, tuned[spec.name].ctypes.data)
                    else:
                        context.set_input_shape(spec.name, tuned[spec.name].shape)
                inspector.execution_context = context  # the context must outlive the next calls
                layers = range(number * many, (number + 1) * many)
                texts = [inspector.get_layer_information(index, json) for index in layers]
                found += [nvidia.layer_of(text, number) for text in texts if text]
            stream.synchronize()
        return found


@contextmanager
def _warning_only(done: str) -> Iterator[None]:
    """Print what is wrong with the timing cache, and go on: it costs time, and never an engine."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        print(f"timings are not {done} (build.tensorrt.timing_cache): {error}", file=sys.stderr)
