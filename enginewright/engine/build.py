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
from enginewright.engine.record import RECORD, REPRODUCE, TUNED_GRAPH, WEIGHTS, EngineRecord, Variant
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.tools import reproduce_script
from enginewright.graph.files import data_of, graph_bytes, graph_files, graph_sha256
from enginewright.graph.onnx_file import load_graph, save_graph, sha256_without_weights
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
    example: Feeds = field(default_factory=dict)  # of the smallest batch, to run once; without it, noise
    tuned: Path | None = None  # the same computation in another graph, which is compiled instead
    longest: float | None = None  # seconds that a build may take


def build_engine(graph: DescribedGraph, target: Target, build: BuildParams, folder: Path) -> EngineRecord:
    onnx, about, compiled = graph.onnx, graph.manifest, graph.tuned or graph.onnx
    blueprint = replace(read_blueprint(compiled, build), example=graph.example, longest=graph.longest)
    with new_folder(folder) as unfinished:
        started = time.perf_counter()
        layers, build, remark = load_runtime(target.runtime).compile(compiled, blueprint, unfinished)
        seconds = time.perf_counter() - started
        weights = [unfinished / name for name in (WEIGHTS, data_of(onnx).name) if (unfinished / name).exists()]
        files = sorted(set(unfinished.iterdir()) - set(weights))
        size = sum(file.stat().st_size for file in files)
        if graph.tuned:  # by which NVIDIA's tools build it again
            files += [Path(shutil.copy(file, unfinished / file.name)) for file in graph_files(graph.tuned)]
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
            apart=tuple(blueprint.apart),
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
        _write(record, os.path.relpath(onnx, folder), unfinished)
    return record


def keep_engine(found: Path, record: EngineRecord, onnx: Path, folder: Path) -> EngineRecord:
    """Copy an engine that was built elsewhere of this graph, with what its record says now."""
    with new_folder(folder) as unfinished:
        shutil.copytree(found, unfinished, dirs_exist_ok=True)
        _write(record, os.path.relpath(onnx, folder), unfinished)
    return record


def _write(record: EngineRecord, onnx: str, folder: Path) -> None:
    if RUNTIMES[record.target.runtime].is_tensorrt:
        (folder / REPRODUCE).write_text(reproduce_script(record, onnx), encoding="utf-8")
    record.write(folder / RECORD)


def build_variant(graph: DescribedGraph, target: Target, variant: Variant, folder: Path) -> EngineRecord:
    """Build an engine as a variant says. Its graph, if that is another one, is written beside the folder."""
    if variant.changes:
        from enginewright.graph.passes import changed_by
        from enginewright.graph.passes.find import remove_unused
        from enginewright.graph.passes.for_one_compiler import TO_TRY

        asked, changed = load_graph(graph.onnx), folder.with_name(TUNED_GRAPH)
        save_graph(changed_by(asked, *(TO_TRY[name] for name in variant.changes), remove_unused) or asked, changed)
        graph = replace(graph, tuned=changed)
    return build_engine(graph, target, variant.build, folder)
