"""Engines on disk: building them, and loading them only when they are whole and belong to this machine."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.files import new_folder, sha256
from enginery.core.params import BuildParams, InferenceParams
from enginery.core.records import EngineRecord, Machine, Manifest, Target
from enginery.graphs import read_blueprint
from enginery.reproduce import TRTEXEC, reproduce_script
from enginery.runtimes import Arrays, Session, load_runtime
from enginery.targets import require_fits

RECORD, REPRODUCE = "engine.json", "reproduce.sh"


def build_engine(
    precision: str,
    onnx: Path,
    target: Target,
    build: BuildParams,
    manifest: Manifest,
    folder: Path,
    scores: str | None = None,
) -> EngineRecord:
    """Compile for the target; the folder holds all that inference needs."""
    blueprint = read_blueprint(onnx, build)
    with new_folder(folder) as unfinished:
        started = time.perf_counter()
        layers = load_runtime(target.runtime).compile(onnx, blueprint, unfinished)
        seconds = time.perf_counter() - started
        files = sorted(unfinished.iterdir())
        record = EngineRecord(
            precision=precision,
            target=target,
            build=build,
            files={file.name: sha256(file) for file in files},
            bytes=sum(file.stat().st_size for file in files),
            onnx_sha256=sha256(onnx),
            onnx_bytes=onnx.stat().st_size,
            interface=blueprint.interface,
            layers=tuple(layers),
            build_seconds=round(seconds, 3),
            preprocessing=manifest.preprocessing,
            class_names=manifest.class_names,
            scores=scores,
        )
        if target.runtime in TRTEXEC:
            (unfinished / REPRODUCE).write_text(reproduce_script(record, os.path.relpath(onnx, folder)))
        record.write(unfinished / RECORD)
    return record


class Engine:
    """A loaded engine. It checks what it is fed, so that an error names the tensor and the limit."""

    def __init__(self, record: EngineRecord, session: Session) -> None:
        self.record = record
        self._session = session

    @classmethod
    def open(cls, folder: Path, machine: Machine, inference: InferenceParams) -> Self:
        return cls.open_many(folder, machine, inference, requests=1)[0]

    @classmethod
    def open_many(cls, folder: Path, machine: Machine, inference: InferenceParams, requests: int) -> list[Self]:
        """They run side by side, on one copy of the weights where the runtime allows it."""
        record = checked_record(folder, machine)
        runtime = load_runtime(machine.runtime)
        sessions = runtime.load(folder, record.blueprint, inference.on(machine.cores), requests)
        return [cls(record, session) for session in sessions]

    @property
    def replays(self) -> bool:
        return self._session.replays

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        self._require_fitting(feeds)
        return self._session.run(feeds)

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        self._require_fitting(feeds)
        return self._session.bind(feeds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._session.close()

    def _require_fitting(self, feeds: Arrays) -> None:
        specs = {spec.name: spec for spec in self.record.interface.inputs}
        if feeds.keys() != specs.keys():
            raise EngineryError(f"the engine takes {', '.join(specs)}, but was given {', '.join(feeds) or 'nothing'}")
        given: dict[str, tuple[str, int]] = {}  # by axis: the first input that has it, and its size
        for name, array in feeds.items():
            spec = specs[name]
            if array.dtype != spec.dtype:
                raise EngineryError(f"input {name} is {array.dtype} and must be {spec.dtype}")
            if len(array.shape) != len(spec.shape) or not all(map(self._fits, array.shape, spec.shape)):
                wanted = tuple(self.record.profile.ranges.get(str(size), size) for size in spec.shape)
                raise EngineryError(
                    f"input {name} has shape {array.shape}, and the engine takes ({', '.join(map(str, wanted))})"
                )
            for axis, size in zip(spec.shape, array.shape, strict=True):
                first, others = given.setdefault(axis, (name, size)) if isinstance(axis, str) else (name, size)
                if size != others:
                    raise EngineryError(f"input {name} has {axis} {size}, and input {first} has {others}")

    def _fits(self, size: int, wanted: int | str) -> bool:
        return size == wanted if isinstance(wanted, int) else size in self.record.profile.ranges[wanted]


def checked_record(folder: Path, machine: Machine) -> EngineRecord:
    """Hashes and machine come first: an engine is executable code, and a compiler's own checks miss damage."""
    record = EngineRecord.read(folder / RECORD)
    require_whole(record, folder)
    require_fits(record.target, machine, folder)
    return record


def require_whole(record: EngineRecord, folder: Path) -> None:
    for name, expected in record.files.items():
        file = folder / name
        if not file.exists() or sha256(file) != expected:
            state = "is damaged: its hash differs from the one in engine.json" if file.exists() else "is missing"
            raise EngineryError(f"{file} {state}. Run `dvc repro` to build it again, or `dvc checkout` to restore it")


def require_made_of(record: EngineRecord, precision: str, onnx: Path) -> None:
    """The engine of one precision and the graph of another would agree with PyTorch, and prove nothing."""
    if record.precision != precision or record.onnx_sha256 != sha256(onnx):
        raise EngineryError(f"the engine was not built as {precision} of {onnx}: run `dvc repro` to build it again")
