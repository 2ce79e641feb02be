"""Make a folder like one that `dvc repro` has filled, with one tiny engine: artifacts, reports and params.yaml."""

import shutil
import sys
from pathlib import Path

from enginewright.core.facts import PYTORCH
from enginewright.core.params.build import BuildParams
from enginewright.data.sample_set import Manifest
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import Machine, target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import describe_machine
from enginewright.measure.records import (
    Benchmark,
    Contention,
    Errors,
    Latency,
    MachinePace,
    Measurement,
    Measurements,
    Ratio,
    Spread,
    Validation,
    Verdict,
)
from support.command import ROOT
from support.results import accuracy, agreed

CLOSE = Errors(max_abs=1e-5, mean_abs=1e-6, relative=1e-6, cosine=1.0, worst_cosine=1.0, nonfinite=0)


def make_project(root: Path, engine: Path, onnx: Path, machine: Machine) -> Path:
    record = EngineRecord.read(engine / "engine.json")
    precision = record.precision
    shutil.copytree(engine, root / "artifacts" / "engines" / precision)
    converted = root / "artifacts" / "converted" / precision
    converted.mkdir(parents=True)
    shutil.copyfile(onnx, converted / "model.onnx")
    shutil.copyfile(ROOT / "params.yaml", root / "params.yaml")
    Verdict(recommended=precision, failures={precision: ()}, unsure={}).write(root / "reports" / "verdict.json")
    judge(root, record, machine)
    return root


def let_make_run(root: Path, *programs: Path) -> None:
    """Let `make` find this environment and take it for an up-to-date one of its own. What lies in the folders
    `programs` stands in place of the environment's programs of the same names."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, root / name)
    (root / ".venv/bin").mkdir(parents=True)
    for name in ("lib", "pyvenv.cfg"):
        (root / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    for program in (each for folder in (Path(sys.prefix, "bin"), *programs) for each in folder.iterdir()):
        link = root / ".venv/bin" / program.name
        link.unlink(missing_ok=True)
        link.symlink_to(program)
    (root / ".venv/ready").touch()


def build_project(root: Path, runtime: str, onnx: Path, build: BuildParams, manifest: Manifest) -> Path:
    """Make such a folder with an engine that is built here for the runtime."""
    machine, engine = describe_machine(runtime), root / "engine"
    build_engine(DescribedGraph("fp32", onnx, manifest), target_of(machine, build.tensorrt), build, engine)
    return make_project(root / "project", engine, onnx, machine)


def judge(root: Path, record: EngineRecord, machine: Machine, identity: str | None = None, **more: object) -> None:
    """Write the measurements of the engine, with made-up figures."""
    validation = Validation(
        precision=record.precision,
        reference=PYTORCH,
        engine=identity or record.identity,
        samples=512,
        **accuracy(0.986, 0.985, 0.984),
        agreement=agreed(1.0),
        engine_against_pytorch=CLOSE,
        graph_against_pytorch=CLOSE,
        engine_against_graph=CLOSE,
        spots=(),
        resized=(),
        loss_comes_from="precision",
        broken=(),
        unsure=(),
        must_be_sure=False,
        spread=Spread(shares=(0, 1), relative_error=(1e-6, 1e-6), margin_kept=()),
    )
    measured = Measurement(
        precision=record.precision,
        engine_bytes=record.bytes,
        files=record.files,
        executed_as_asked=1.0,
        validation=validation.model_copy(update=more),
        benchmark=made_up_benchmark(record.precision, cuda_graph=record.target.runtime.startswith("tensorrt")),
    )
    Measurements(machine=machine, precisions=(measured,)).write(root / "reports" / "measurements.json")


def made_up_benchmark(precision: str, cuda_graph: bool = False) -> Benchmark:
    times = {"engine": 2.5, "eager": 10.0}
    return Benchmark(
        precision=precision,
        threads=2,
        cuda_graph=cuda_graph,
        confidence=0.95,
        latencies=tuple(
            Latency(
                contender=contender,
                batch=4,
                runs=100,
                p50=milliseconds,
                p90=milliseconds,
                p99=milliseconds + 1,
                compute=None,
                spread=0.02,
                outliers=0.0,
                warm_up_drift=0.0,
                images_per_second=4000 / milliseconds,
            )
            for contender, milliseconds in times.items()
        ),
        ratios=(Ratio(baseline="eager", batch=4, rounds=20, median=4.0, low=3.9, high=4.1),),
        pace=MachinePace(microseconds=5.0, rounds=40, set_aside=0),
        throughput=(),
        contention=Contention(cores=2, others=0.0, stolen=0.0, throttled=0.0),
        peak_memory={},
        isolated_compute={},
        gpu=None,
        pytorch="2.15.0",
    )
