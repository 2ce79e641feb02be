"""Made-up findings, for tables, pages and pictures."""

from dataclasses import replace

import numpy as np
import pytest
from support.findings import race_of
from support.results import accuracy, agreed, benchmark_of, errors_of, latency_of, ratio_of, validation_of

from enginewright.core.params.build import Profile, Range
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord, Layer, LayerTime, Refusal
from enginewright.graph.interface import Interface, TensorSpec
from enginewright.measure.agreement import spread
from enginewright.measure.records import Kept, PeakMemory, Spot, Spread, Throughput, Trace, Within
from enginewright.precision.floats import Conversion
from enginewright.precision.records import MIX
from enginewright.report.evidence import Evidence, EvidencePaths, Findings, gather_findings
from enginewright.tasks.classification import Classification

BATCHES = (1, 8)


def spread_of_images(error: float) -> Spread:
    """Return the errors of 200 single images, scattered around an error as they are in practice."""
    rng = np.random.default_rng(0)
    wanted = rng.normal(0, 3, (200, 10)).astype(np.float32)
    got = wanted * (1 + error * rng.normal(size=wanted.shape)).astype(np.float32)
    outputs = {"logits": wanted}, {"logits": got}
    return spread(*outputs, Classification(None, ()).leads_kept(*outputs))


@pytest.fixture
def evidence(machine, build, manifest):
    """Return a maker of evidence on one precision, whose ratio is (median, low, high) at every batch size."""

    def make(precision, ratio=(2.0, 1.9, 2.1), relative=0.01, broken=(), executed=None, batches=BATCHES):
        median, low, high = ratio
        errors = errors_of(relative, cosine=0.998765)
        layers = [
            Layer(name="conv1", kind="Convolution", precision=executed or precision, computes=True),
            Layer(name="conv2", kind="Convolution", precision=executed or precision, computes=True),
            Layer(name="classifier", kind="FullyConnected", precision="fp32", computes=True),
            Layer(name="reorder", kind="Reorder", precision="fp32", computes=False),
        ]
        spec = TensorSpec(name="input", dtype="float32", shape=("batch", 3, 8, 8))
        chosen = build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=8, max=16))})
        return Evidence(
            engine=EngineRecord(
                precision=precision,
                target=target_of(machine, chosen.tensorrt),
                build=chosen,
                files={"engine.blob": "0" * 64},
                bytes=12_340_000,
                onnx_sha256="1" * 64,
                onnx_bytes=45_600_000,
                interface=Interface(inputs=(spec,), outputs=(spec,)),
                layers=tuple(layers),
                build_seconds=1.25,
                preprocessing=manifest.preprocessing,
                class_names=manifest.class_names,
                scores=None,
            ),
            validation=validation_of(
                precision,
                errors,
                engine="2" * 64,
                samples_sha256="e" * 64,
                **accuracy(0.9876, 0.98, 0.9753),
                agreement=agreed(0.96875),
                engine_against_graph=errors.model_copy(update={"relative": relative / 10}),
                spots=(Spot(batch=1, samples=64, errors=errors, metric=0.984375, drift=1.5e-7),),
                broken=broken,
                spread=spread_of_images(relative),
            ),
            benchmark=benchmark_of(
                precision,
                (
                    latency_of(contender, batch, milliseconds * batch)
                    for batch in batches
                    for contender, milliseconds in (("engine", 8.0 / median), ("eager", 8.0))
                ),
                (ratio_of(batch, median, low, high) for batch in batches),
                throughput=tuple(
                    Throughput(
                        batch=batch,
                        requests=requests,
                        runs=200,
                        images_per_second=125.0 * median * {1: 1.0, 2: 1.6}[requests],
                        p50=4.0,
                        p99=5.0 * requests,
                    )
                    for batch in batches
                    for requests in (1, 2)
                ),
                peak_memory={
                    "engine": PeakMemory(host=150.4, device=None),
                    "eager": PeakMemory(host=800.2, device=None),
                },
            ),
            trace=Trace(
                precision=precision,
                machine=machine,
                batch=8,
                calls=48,
                layers=tuple(
                    LayerTime(**layer.model_dump(), milliseconds=milliseconds / median)
                    for layer, milliseconds in zip(layers, (30.0, 20.0, 8.0, 2.0), strict=True)
                ),
            ),
        )

    return make


@pytest.fixture
def served(evidence):
    """Return evidence of an engine that serves so many samples a second within 5 ms; none if that is 0."""

    def make(precision, speed, rate):
        kept = Kept(batch=8, requests=2, delay=0.5, images_per_second=rate, p99=4.5, low=4.25, high=4.75)
        found = Within(
            milliseconds=5.0,
            back_to_back=kept.model_copy(update={"delay": 0.0}) if rate else None,
            at_random=kept if rate else None,
            promised=1.1 * rate,
            low=1.05 * rate,
            high=1.15 * rate,
            least=6.5,
            curve=((5.0, 1.1 * rate), (10.0, 2 * rate)),
        )
        entry = evidence(precision, (speed, speed, speed))
        return replace(entry, benchmark=entry.benchmark.model_copy(update={"within": found}))

    return make


@pytest.fixture
def findings(machine):
    def make(*precisions, disturbed=(), **refused):
        why = {name: Refusal(precision=name, why=text) for name, text in refused.items()}
        return Findings(machine, precisions, race_of(*precisions, disturbed=disturbed), why)

    return make


@pytest.fixture
def crowded(findings, evidence):
    """Return findings with two dots as close as on an H200, two at nearly the same place, and a single one."""
    speeds = {"fp32": 1.63, "fp16": 1.55, "bf16": 0.28, "int8": 0.26, "fp8": 0.9}
    errors = {"fp32": 1e-4, "fp16": 1.2e-4, "bf16": 2e-3, "int8": 2e-3, "fp8": 1e-3}
    return findings(*(evidence(name, (at, at, at), relative=errors[name]) for name, at in speeds.items()))


@pytest.fixture
def gpu(machine):
    changes = {"runtime": "tensorrt", "runtime_version": "11.4.0.106", "device": "cuda", "device_name": "NVIDIA H200"}
    return machine.model_copy(update=changes | {"capability": "9.0", "driver": "580.65", "cuda": "13.0"})


@pytest.fixture
def written(tmp_path, machine):
    """Write evidence as the stages do, and return a function that reads it."""

    def write(*entries):
        machine.write(tmp_path / "machine.json")
        for entry in entries:
            entry.engine.write(tmp_path / "engines" / entry.precision / "engine.json")
            entry.validation.write(tmp_path / "validation" / f"{entry.precision}.json")
            entry.benchmark.write(tmp_path / "benchmark" / entry.precision / "summary.json")
            entry.trace.write(tmp_path / "trace" / f"{entry.precision}.json")
            converted = Conversion(precision=entry.precision, opset=20, nodes={}, floats=entry.floats)
            converted.write(tmp_path / "converted" / entry.precision / "convert.json")
            if entry.mix:
                entry.mix.write(tmp_path / "converted" / entry.precision / MIX)
        race_of(*entries).write(tmp_path / "race.json")
        names = "engines", "converted", "validation", "benchmark", "trace", "race.json", "machine.json"
        places = EvidencePaths(*(tmp_path / name for name in names))
        return lambda *precisions: gather_findings(precisions, places)

    return write
