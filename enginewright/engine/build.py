"""Compile an engine and write its folder."""

import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from enginewright.core.facts import RUNTIMES
from enginewright.core.files import new_folder, sha256
from enginewright.core.params.build import BuildParams
from enginewright.core.params.model import BoxesParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import TOKENIZER, Manifest
from enginewright.engine.machine import Target
from enginewright.engine.record import RECORD, REPRODUCE, WEIGHTS, EngineRecord
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.tools import reproduce_script
from enginewright.graph.files import data_of, graph_bytes, graph_sha256
from enginewright.graph.onnx_file import load_graph, sha256_without_weights
from enginewright.graph.read_interface import read_blueprint


@dataclass(frozen=True)
class DescribedGraph:
    """A graph to compile, and what its engine must know of it: what it is fed with, and what its answers mean."""

    precision: str
    onnx: Path
    manifest: Manifest
    scores: str | None = None  # model.scores
    boxes: BoxesParams = field(default_factory=BoxesParams)  # model.boxes
    tokenizer: Path | None = None
    example: Feeds = field(default_factory=dict)  # to run once; without it, zeros


def build_engine(graph: DescribedGraph, target: Target, build: BuildParams, folder: Path) -> EngineRecord:
    onnx, about = graph.onnx, graph.manifest
    blueprint = replace(read_blueprint(onnx, build), example=graph.example)
    is_tensorrt = RUNTIMES[target.runtime].is_tensorrt
    with new_folder(folder) as unfinished:
        started = time.perf_counter()
        layers, build, remark = load_runtime(target.runtime).compile(onnx, blueprint, unfinished)
        seconds = time.perf_counter() - started
        weights = [unfinished / name for name in (WEIGHTS, data_of(onnx).name) if (unfinished / name).exists()]
        files = sorted(set(unfinished.iterdir()) - set(weights))
        size = sum(file.stat().st_size for file in files)
        if graph.tokenizer:
            files.append(Path(shutil.copy(graph.tokenizer, unfinished / TOKENIZER)))
        record = EngineRecord(
            precision=graph.precision,
            target=target,
            build=build,
            files={file.name: sha256(file) for file in files},
            bytes=size,
            weights={file.name: sha256(file) for file in weights},
            graph_sha256=sha256_without_weights(load_graph(onnx)) if build.tensorrt.refit else None,
            onnx_sha256=graph_sha256(onnx),
            onnx_bytes=graph_bytes(onnx),
            interface=blueprint.interface,
            layers=tuple(layer for layer in layers if not layer.profile),
            tuned_layers=tuple(layer for layer in layers if layer.profile),
            build_seconds=round(seconds, 3),
            remark=remark,
            preprocessing=about.preprocessing,
            text=about.text,
            class_names=about.class_names,
            scores=graph.scores,
            task=about.task,
            boxes=graph.boxes,
        )
        if is_tensorrt:
            script = reproduce_script(record, os.path.relpath(onnx, folder))
            (unfinished / REPRODUCE).write_text(script, encoding="utf-8")
        record.write(unfinished / RECORD)
    return record
