"""Reduce every fault of docs/evidence/results.md that this machine can show, without its cure: nodes left, and seconds.

    python benchmarks/networks/faults.py                             # the graphs of FAULTS
    python benchmarks/networks/faults.py "pool" densenet121:int8     # those whose names begin so, and a whole network
    python benchmarks/networks/faults.py --cure                      # what `enginewright cure` finds

A whole network (MODEL:PRECISION) is made by the pipeline's stages below `--folder`, without training, and quantized or
cast without the rewrites that avoid faults: for OpenVINO, or with `--runtime tensorrt_rtx` for NVIDIA's builder. Each
row comes from a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import zoo
from numpy.typing import NDArray
from onnx import numpy_helper

from tools.reduction.case import Case
from tools.reduction.reduce import Setup, reduce_fault

if TYPE_CHECKING:
    from enginewright.core.facts import PrecisionName

SECONDS = 600.0
LIMIT = 0.02  # the relative error from which on a result is wrong
ONE_PLACE = "eliminate_nop_softmax"  # of onnxsim: the attention of MobileViT that has one place
RNG = np.random.default_rng(0)
Feeds = dict[str, NDArray[Any]]
Fault = tuple[str, Callable[[], tuple[onnx.ModelProto, list[Feeds]]]]  # the runtime, and what makes graph and runs


def graph_of(text: str, constants: Mapping[str, Any]) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    for number, node in enumerate(graph.node):
        node.name = node.name or f"node_{number}"
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def weights(channels: int, *others: int) -> Feeds:
    """Return constants in bytes, with a scale for each channel."""
    return {
        "w": RNG.integers(-63, 64, (channels, *others)).astype(np.int8),  # a CPU without VNNI adds them, too
        "ws": RNG.uniform(0.001, 0.003, channels).astype(np.float32),
        "wz": np.zeros(channels, np.int8),
        "s": np.array(0.02, np.float32),
        "z": np.array(0, np.int8),
    }


def rounded(source: str, target: str) -> str:
    return f"{target}q = QuantizeLinear ({source}, s, z) {target} = DequantizeLinear ({target}q, s, z)"


WEIGHTS = "k = DequantizeLinear <axis = 0> (w, ws, wz)"


def concat() -> tuple[onnx.ModelProto, list[Feeds]]:
    nodes = f"a = Relu (x) b = Sigmoid (x) c = Concat <axis = 1> (a, b) {rounded('c', 'r')} {WEIGHTS}"
    text = f"g (float[batch,12,8,8] x) => (float[batch,24,8,8] y) {{ {nodes} v = Conv (r, k) y = Relu (v) }}"
    return graph_of(text, weights(24, 24, 1, 1)), [{"x": normal(size, 12, 8, 8)} for size in (4, 1)]


def two_readers() -> tuple[onnx.ModelProto, list[Feeds]]:
    nodes = f"{rounded('x', 'r')} {WEIGHTS} c = Conv (r, k) {rounded('c', 'u')} t = Tanh (x) y = Add (t, c)"
    shape = "float[batch,24,2,2]"
    model = graph_of(f"g ({shape} x) => ({shape} u, {shape} y) {{ {nodes} }}", weights(24, 24, 1, 1))
    return model, [{"x": normal(size, 24, 2, 2)} for size in (8, 1)]


def single_pixel() -> tuple[onnx.ModelProto, list[Feeds]]:
    """A quantized pixel that is added to a convolution."""
    nodes = f"p = Relu (x) {rounded('p', 'r')} {WEIGHTS} c = Conv (r, k) b = Relu (c) {rounded('b', 'o')}"
    nodes += " d = Conv (o, k) y = Add (d, r)"
    shape = "float[batch,24,1,1]"
    given = weights(24, 24, 1, 1)
    return graph_of(f"g ({shape} x) => ({shape} y) {{ {nodes} }}", given), [{"x": normal(n, 24, 1, 1)} for n in (16, 1)]


def pool() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Inception's: a branch of a Concat averages over a padded edge, what others read as bytes, too."""
    average = "AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1], count_include_pad = 1>"
    nodes = f"p = Relu (x) {rounded('p', 'r')} {WEIGHTS} a = {average} (r) {rounded('a', 'o')} c = Conv (o, k)"
    nodes += " d = Conv (r, k)"
    nodes += " e = Relu (c) f = Relu (d) y = Concat <axis = 1> (e, f)"
    text = f"g (float[batch,24,8,8] x) => (float[batch,48,8,8] y) {{ {nodes} }}"
    return graph_of(text, weights(24, 24, 1, 1)), [{"x": normal(size, 24, 8, 8)} for size in (8, 1)]


def ones_behind() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Keys of an attention with one place: a product moves on with axes of size one."""
    constants = weights(16, 24) | {"shape": np.array([-1, 1, 16, 1])}
    constants["w"] = np.ascontiguousarray(constants["w"].T)
    nodes = f"{rounded('x', 'r')} k = DequantizeLinear <axis = 1> (w, ws, wz) m = MatMul (r, k) n = Reshape (m, shape)"
    text = f"g (float[batch,1,24] x) => (float[batch,1,16,1] y) {{ {nodes} y = Relu (n) }}"
    return graph_of(text, constants), [{"x": normal(size, 1, 24) * 0.5} for size in (8, 1)]


def maximum() -> tuple[onnx.ModelProto, list[Feeds]]:
    """VOLO's head: a maximum over tokens, rounded, is added to what else is known."""
    nodes = f"m = ReduceMax (x, axes) h = Relu (m) {rounded('h', 'r')} y = Add (r, r)"
    constants = weights(1) | {"axes": np.array([1])}
    return graph_of(f"g (float[batch,16,10] x) => (float[batch,1,10] y) {{ {nodes} }}", constants), [
        {"x": normal(8, 16, 10)}
    ]


def single_column(is_bf16: bool) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Make a single column with a stride, as SegFormer does on images of 32 pixels. Only with AMX is it wrong."""
    convolution = "Conv <strides = [2, 2], pads = [1, 1, 1, 1]>"
    if is_bf16:
        nodes, constants = "b = Cast <to = 16> (p) k = Cast <to = 16> (w)", {"w": normal(192, 96, 3, 3) * 0.05}
        nodes, sizes = f"{nodes} c = {convolution} (b, k) t = Relu (c) y = Cast <to = 1> (t)", (96, 4, 2)
    else:
        nodes, constants = f"{rounded('p', 'r')} {WEIGHTS} c = {convolution} (r, k) y = Relu (c)", weights(96, 24, 3, 3)
        sizes = (24, 14, 2)
    ends = f"(float[batch,{sizes[0]},{sizes[1]},2] x) => (float[batch,{len(constants['w'])},{sizes[1] // 2},1] y)"
    model = graph_of(f"g {ends} {{ p = Relu (x) {nodes} }}", constants)
    model.opset_import[0].version = 22
    return model, [{"x": normal(size, *sizes)} for size in (8, 1)]


def rows_of_tiles() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Fill rows of AMX's tiles with a kernel's, as the patches of a PVT do. Only with AMX is it wrong."""
    nodes = f"p = Relu (x) {rounded('p', 'r')} {WEIGHTS} c = Conv <strides = [8, 8]> (r, k) y = Relu (c)"
    text = f"g (float[batch,32,16,16] x) => (float[batch,32,2,2] y) {{ {nodes} }}"
    return graph_of(text, weights(32, 32, 8, 8)), [{"x": normal(size, 32, 16, 16)} for size in (1, 8)]


def small_batch() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Run a small batch after a large one, as MobileNetV3 did. Only with AMX is it wrong."""
    nodes = f"{rounded('x', 'r')} {WEIGHTS} c = Conv (r, k) y = Relu (c)"
    text = f"g (float[batch,16,1,1] x) => (float[batch,96,1,1] y) {{ {nodes} }}"
    return graph_of(text, weights(96, 16, 1, 1)), [{"x": normal(size, 16, 1, 1)} for size in (32, 1)]


def hard_swish() -> tuple[onnx.ModelProto, list[Feeds]]:
    nodes = "b = Cast <to = 16> (x) r = Relu (b) h = HardSwish (r) t = Tanh (h) y = Cast <to = 1> (t)"
    model = graph_of(f"g (float[batch,8,4,4] x) => (float[batch,8,4,4] y) {{ {nodes} }}", {})
    model.opset_import[0].version = 22
    return model, [{"x": normal(4, 8, 4, 4)}]


def transposed() -> tuple[onnx.ModelProto, list[Feeds]]:
    constants = {"w": normal(8, 8, 2, 2)}
    nodes = "b = Cast <to = 16> (x) v = Cast <to = 16> (w) r = Relu (b) c = ConvTranspose <strides = [2, 2]> (r, v)"
    text = f"g (float[batch,8,4,4] x) => (float[batch,8,8,8] y) {{ {nodes} t = Tanh (c) y = Cast <to = 1> (t) }}"
    model = graph_of(text, constants)
    model.opset_import[0].version = 22
    return model, [{"x": normal(4, 8, 4, 4)}]


def col2im() -> tuple[onnx.ModelProto, list[Feeds]]:
    constants = {"image": np.array([8, 8]), "block": np.array([2, 2])}
    nodes = "r = Relu (x) c = Col2Im <strides = [2, 2]> (r, image, block) y = Tanh (c)"
    text = f"g (float[batch,12,16] x) => (float[batch,3,8,8] y) {{ {nodes} }}"
    return graph_of(text, constants), [{"x": normal(4, 12, 16)}]


def capitals() -> tuple[onnx.ModelProto, list[Feeds]]:
    nodes = 'r = Relu (x) e = Einsum <equation = "bchW,bchV->bcWV"> (r, x) y = Tanh (e)'
    return graph_of(f"g (float[batch,3,8,8] x) => (float[batch,3,8,8] y) {{ {nodes} }}", {}), [
        {"x": normal(4, 3, 8, 8)}
    ]


def keys_and_values() -> tuple[onnx.ModelProto, list[Feeds]]:
    """VOLO's attention: float16 meets weights with Q/DQ nodes, and the product is split into keys and values."""
    width, heads, tokens = 64, 4, 16
    constants = {
        "w": normal(width, 2 * width).astype(np.float16),
        "ws": np.full(2 * width, 0.02, np.float16),
        "wz": np.zeros(2 * width, np.int8),
        "shape": np.array([-1, tokens, 2, heads, width // heads]),
        "first": np.array(0),
        "second": np.array(1),
    }
    nodes = "c = Cast <to = 10> (x) h = Relu (c) e = QuantizeLinear <axis = 1> (w, ws, wz)"
    nodes += " f = DequantizeLinear <axis = 1> (e, ws, wz) m = MatMul (h, f) r = Reshape (m, shape)"
    nodes += " t = Transpose <perm = [2, 0, 3, 1, 4]> (r) k = Gather <axis = 0> (t, first)"
    nodes += " v = Gather <axis = 0> (t, second) g = Cast <to = 10> (q) n = Transpose <perm = [0, 1, 3, 2]> (k)"
    nodes += " a = MatMul (g, n) p = Softmax <axis = -1> (a) o = MatMul (p, v) y = Cast <to = 1> (o)"
    sizes = f"float[batch,{tokens},{width}] x, float[batch,{heads},1,{width // heads}] q"
    text = f"g ({sizes}) => (float[batch,{heads},1,{width // heads}] y) {{ {nodes} }}"
    runs = [{"x": normal(4, tokens, width), "q": normal(4, heads, 1, width // heads)}]
    return graph_of(text, constants), runs


FAULTS: dict[str, Fault] = {
    "concat, rounding, convolution": ("openvino", concat),
    "convolution read rounded and exactly": ("openvino", two_readers),
    "pixel added to a convolution": ("openvino", single_pixel),
    "pool over a padded edge": ("openvino", pool),
    "product that moves on with ones": ("openvino", ones_behind),
    "maximum that is rounded": ("openvino", maximum),
    "single column in bf16": ("openvino", lambda: single_column(is_bf16=True)),
    "single column in int8": ("openvino", lambda: single_column(is_bf16=False)),
    "kernel that fills rows of tiles": ("openvino", rows_of_tiles),
    "small batch after a large one": ("openvino", small_batch),
    "hard swish in bf16": ("tensorrt_rtx", hard_swish),
    "transposed convolution in bf16": ("tensorrt_rtx", transposed),
    "col2im": ("tensorrt_rtx", col2im),
    "capitals in an equation": ("tensorrt_rtx", capitals),
    "keys and values of weights in bytes": ("tensorrt_rtx", keys_and_values),
}


def network(name: str, precision: "PrecisionName", runtime: str) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Return the graph of a whole network without the rewrites that avoid faults, and samples for it."""
    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import SampleSet
    from enginewright.graph import simplify
    from enginewright.graph.onnx_file import load_graph
    from enginewright.pipeline.graphs import ConvertPaths, convert
    from enginewright.precision import in_dialect
    from enginewright.precision.dialect import dialect_of

    simplify.SKIPPED.remove(ONE_PLACE)
    if not Path("artifacts/rescued").exists():
        zoo.write_params(name, 0, "cpu")
        zoo.prepare(lambda _, call: call())
    in_dialect.REWRITES.clear()
    in_dialect.UNKNOWN.clear()
    in_dialect.WITHOUT_KERNEL.clear()
    if runtime == "tensorrt_rtx":
        dialect_of("tensorrt", "cuda", "").write(Path("dialect.json"))
    else:
        Path("dialect.json").write_bytes(zoo.made_at("dialect.json").read_bytes())
    source = {"int8": "calibrated", "fp8": "calibrated"}.get(precision, "simplified")
    simplified, made_from, calibrated, rescued = map(zoo.made_at, ("simplified", source, "calibrated", "rescued"))
    boxes, cures = zoo.made_at("exported/boxes.json"), zoo.made_at("cures.json")
    given = zoo.made_at("samples/calibration"), Path("dialect.json"), boxes, cures
    with tempfile.TemporaryDirectory(dir=".") as folder:
        converted = Path(folder) / precision
        graphs = simplified, made_from, calibrated, rescued
        convert(Params.read(), precision, ConvertPaths(*graphs, *given, converted))
        samples = SampleSet.open(zoo.made_at("samples/validation"))
        return load_graph(converted / "model.onnx"), [dict(samples.cycled(size)) for size in (8, 1)]


def run_one(name: str, runtime: str, folder: Path) -> None:
    """Print a row."""
    from enginewright.engine.machine import target_of
    from enginewright.engine.runtimes import describe_machine

    os.chdir(zoo.ROOT)
    from enginewright.core.params.all import Params

    tensorrt = Params.read().build.tensorrt
    if name in FAULTS:
        runtime, make = FAULTS[name]
        model, runs = make()
    else:
        network_name, _, precision = name.rpartition(":")
        os.chdir(folder)
        model, runs = network(network_name, precision, runtime)  # type: ignore[arg-type]
    setup = Setup(target_of(describe_machine(runtime), tensorrt), LIMIT, cured=False)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            least, fault = reduce_fault(Case(model, runs), setup, SECONDS, Path(scratch) / "found", lambda _: None)
        except Exception as error:  # a row, too
            print(f"| {name} | {runtime} | {len(model.graph.node)} | {error} | {time.monotonic() - started:.0f} |")
            return
    left = ", ".join(node.op_type for node in least.model.graph.node)
    print(
        f"| {name} | {runtime} | {len(model.graph.node)} | {least.operations}: {left}; {fault.kind} | "
        f"{time.monotonic() - started:.0f} |"
    )


def cure_one(name: str) -> None:
    """Print what cures a fault, as a line of JSON. OpenVINO reads graphs by itself here."""
    import openvino

    from enginewright.core.errors import CompilerError
    from enginewright.core.params.all import Params
    from enginewright.core.params.build import Profile, Range
    from enginewright.engine.runtimes import describe_machine
    from enginewright.engine.runtimes import openvino as runtime
    from enginewright.precision.cure import GraphChange
    from enginewright.precision.find_cure import Trials, find_cure

    runtime.read_graph = openvino.Core().read_model  # type: ignore[attr-defined]
    runtime._run_smallest = lambda *_: None
    os.chdir(zoo.ROOT)
    params, (model, runs) = Params.read(), FAULTS[name][1]()
    largest = max(len(next(iter(run.values()))) for run in runs)
    build = params.build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=largest, max=largest))})
    machine = describe_machine(FAULTS[name][0])
    trials = Trials(machine, build, params.inference, lambda *both: both, runs, LIMIT, seconds=300, most=100)
    with tempfile.TemporaryDirectory() as scratch, redirect_stdout(sys.stderr):
        engine, graph = Path(scratch), Path(scratch) / "model.onnx"
        try:
            trials.compile(model, GraphChange(), engine)
            built = engine
        except CompilerError:
            built = None
        trials.builds, trials.started = 0, time.monotonic()
        cure = None if built and not trials.runs_here else find_cure(name, built, graph, trials, params.benchmark)
    seconds = round(time.monotonic() - trials.started, 1)
    print(json.dumps({"fault": name, "seconds": seconds, "cure": cure and cure.model_dump(mode="json")}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="beginnings of the faults' names, or MODEL:PRECISION")
    parser.add_argument("--runtime", choices=("openvino", "tensorrt_rtx"), default="openvino")
    parser.add_argument("--folder", type=Path, help="where the projects of whole networks are, and stay")
    parser.add_argument("--cure", action="store_true", help="print lines of JSON; null where nothing is wrong here")
    parser.add_argument("--one", action="store_true")
    options = parser.parse_args()
    if options.one and options.cure:
        return cure_one(options.names[0])
    if options.one:
        return run_one(options.names[0], options.runtime, (options.folder or Path()).absolute())
    wanted = [fault for fault in FAULTS if not options.names or any(map(fault.startswith, options.names))]
    wanted += [name for name in options.names if ":" in name]
    if not options.cure:
        print("| fault | compiler | nodes | left | seconds |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in wanted:
            folder = (options.folder or Path(scratch)) / name.rpartition(":")[0].replace(":", "_")
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, str(Path(__file__).resolve()), name, "--one", "--folder", str(folder)]
            command += ["--runtime", options.runtime, *(["--cure"] if options.cure else [])]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            print((done.stdout.splitlines() or [f"| {name} | it failed |"])[-1], flush=True)


if __name__ == "__main__":
    main()
