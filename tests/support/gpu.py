"""What the checks on a real GPU share."""

import os
import subprocess
import sys

import numpy as np

from enginewright.core.facts import PRECISIONS
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.precisions import Keep
from enginewright.data.preprocessing import prepare
from enginewright.engine.engine import open_engine
from enginewright.engine.record import EngineRecord
from enginewright.graph.as_written import run_as_written
from support.paths import ROOT

PLAIN, REPLAYED = InferenceParams(threads=0, cuda_graph=False), InferenceParams(threads=0, cuda_graph=True)
KEEP = Keep(op_types=(), nodes=())
# How far from its graph an engine may be. Another order of sums leaves 1e-5 in fp32, TF32 would leave 3e-4.
LIMITS = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 4e-2, "int8": 2e-2}


def is_for(machine, precision):
    """Tell whether the GPU has a precision. ONNX Runtime executes any, in float32 if need be."""
    capability = tuple(map(int, machine.capability.split(".")))
    return machine.runtime == "onnxruntime" or capability >= PRECISIONS[precision].since


def meant(onnx, images):
    """Return what the graph says that the logits are."""
    return run_as_written(onnx)({"input": images})["logits"]


def relative_error(wanted, got):
    return np.linalg.norm(wanted - got) / np.linalg.norm(wanted)


def command(*arguments, cwd=ROOT):
    """Run `enginewright` in a new process, as a user does."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}
    program = [sys.executable, "-m", "enginewright.cli", *map(str, arguments)]
    return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, text=True)


def answers_for(photos, engine, machine):
    """Return the logits of an engine for image files, of which it gets one at a time."""
    record = EngineRecord.read(engine / "engine.json")
    least = record.profile.batch.min
    with open_engine(engine, machine, PLAIN) as opened:
        feeds = ({"input": np.repeat(one[np.newaxis], least, 0)} for one in _tensors(photos, record))
        return np.stack([opened.run(each)["logits"][0] for each in feeds])


def answers_meant(photos, engine, onnx):
    """Return the logits that its graph says."""
    return meant(onnx, _tensors(photos, EngineRecord.read(engine / "engine.json")))


def _tensors(photos, record):
    return np.stack([prepare(photo, record.preprocessing) for photo in photos])
