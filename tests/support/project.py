"""Make a folder like one that `dvc repro` has filled, with one tiny engine: artifacts, reports and params.yaml."""

import shutil
import sys
from pathlib import Path

from enginewright.core.params.build import BuildParams
from enginewright.data.sample_set import Manifest
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import Machine, target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import describe_machine
from enginewright.measure.records import Errors, Measurement, Measurements, Verdict
from support.command import ROOT
from support.results import accuracy, agreed, benchmark_of, latency_of, ratio_of, validation_of

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
    found = {"engine": identity or record.identity, **accuracy(0.986, 0.985, 0.984), "agreement": agreed(1.0)}
    times = {"engine": 2.5, "eager": 10.0}
    latencies = [latency_of(contender, 4, milliseconds) for contender, milliseconds in times.items()]
    replays = record.target.runtime.startswith("tensorrt")
    measured = Measurement(
        precision=record.precision,
        engine_bytes=record.bytes,
        files=record.files,
        executed_as_asked=1.0,
        validation=validation_of(record.precision, CLOSE, **(found | more)),
        benchmark=benchmark_of(record.precision, latencies, [ratio_of(4, 4.0, 3.9, 4.1)], cuda_graph=replays),
    )
    Measurements(machine=machine, precisions=(measured,)).write(root / "reports" / "measurements.json")
