"""A project with an int8 engine of ONNX Runtime, which can be validated."""

import shutil

import numpy as np

from enginewright.data.sample_set import SampleSet, output_file
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.as_written import run_as_written
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.measure.records import Reference
from enginewright.precision.quantize import activations
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8
from support.params import written
from support.project import make_project


def int8_project(folder, tiny_onnx, build, samples):
    here, graph = describe_machine("onnxruntime"), load_graph(tiny_onnx)
    ranges = {name: Bounds(-8.0, 8.0) for name in activations(graph)}
    save_graph(write_int8(graph, Rounding(ranges, exact_sums=False)), folder / "int8.onnx")
    described = DescribedGraph("int8", folder / "int8.onnx", samples.manifest)
    build_engine(described, target_of(here, build.tensorrt), build, folder / "engine")
    root = make_project(folder / "project", folder / "engine", folder / "int8.onnx", here)
    shutil.copytree(samples.folder, root / "artifacts/samples/validation")
    written(root, {"runtime": "onnxruntime", "benchmark.seconds": 0.02})
    here.write(root / "artifacts/machine.json")
    samples = SampleSet.open(root / "artifacts/samples/validation")
    expected, reference = run_as_written(folder / "int8.onnx")(samples.cycled(len(samples))), root / "reference"
    reference.mkdir()
    for number, values in enumerate(expected.values()):
        np.save(reference / output_file(number), values)
    given = {"made_by": "a graph", "outputs": tuple(expected), "samples": len(samples), "metrics": {}}
    Reference(**given, by_chance=False).write(reference / "reference.json")
    return root


TO_VALIDATE = {
    "engine": "artifacts/engines/int8", "converted": "artifacts/converted/int8", "reference": "reference",
    "validation": "artifacts/samples/validation", "machine": "artifacts/machine.json",
    "report": "reports/validation/made.json", "examples": "reports/examples/made",
}  # fmt: skip
