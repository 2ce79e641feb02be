"""A model repository for Triton Inference Server."""

import shutil
from pathlib import Path

from enginewright.bundle.facts import render
from enginewright.bundle.gate import Passed
from enginewright.core.errors import EnginewrightError
from enginewright.data.sample_set import TOKENIZER
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.runtimes.openvino_graph import write_ir

DEFAULT_NAMES = {"engine.plan": "model.plan", "engine.onnx": "model.onnx"}
SMALL = 16  # up to this batch size launching kernels one by one costs most; Triton's own choice goes as far
TYPES = {
    "float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16", "int8": "TYPE_INT8", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "uint8": "TYPE_UINT8", "bool": "TYPE_BOOL",
}  # fmt: skip


def write_repository(passed: Passed, model: str, labels: str, folder: Path) -> None:
    """Write config.pbtxt, the labels, and the model as version 1 into FOLDER/MODEL."""
    version = folder / model / "1"
    version.mkdir(parents=True)
    if passed.record.target.runtime == "openvino":
        if missing := load_runtime("openvino").missing():
            raise EnginewrightError(f"Triton gets the model in OpenVINO's own form, but {missing}")
        write_ir(passed.onnx, version)
    else:
        for name in passed.record.files.keys() - {TOKENIZER}:
            shutil.copyfile(passed.folder / name, version / DEFAULT_NAMES.get(name, name))
    (folder / model / "labels.txt").write_text(labels, encoding="utf-8")
    (folder / model / "config.pbtxt").write_text(configuration(passed, model), encoding="utf-8")


def configuration(passed: Passed, model: str) -> str:
    record = passed.record
    sizes = record.profile.batch
    profiles = record.build.all_profiles if record.target.runtime == "tensorrt" else (record.profile,)
    largest = sizes.opt if record.target.runtime == "openvino" else sizes.max
    facts = {
        "model": model,
        "record": record,
        "max_batch": largest,
        # None below the profile's: Triton would send batches so small at once, instead of waiting for larger ones.
        "preferred": sorted({*(one.batch.opt for one in profiles if one.batch.opt >= sizes.opt), largest}),
        "profiles": [str(number) for number in range(len(profiles))],
        "replayed": replayed_sizes(passed),
        "settings": passed.settings,
        "resizes": record.profile.resizes,
        "types": TYPES,
    }
    return render("config.pbtxt.j2", facts)


def replayed_sizes(passed: Passed) -> list[int]:
    """Return the batch sizes that Triton replays as CUDA graphs: small ones, those of the report, and preferred ones.
    Each graph takes memory of the GPU, and serves its own batch size alone."""
    benchmark, sizes = passed.measured.benchmark, passed.record.profile.batch
    if passed.record.target.runtime != "tensorrt" or not benchmark.cuda_graph:
        return []
    small = range(sizes.min, min(sizes.max, SMALL) + 1)
    measured = (latency.batch for latency in benchmark.latencies)
    tuned = (profile.batch.opt for profile in passed.record.build.all_profiles)
    return sorted({*small, *measured, *tuned, sizes.max})
