"""Run the examples of a bundle as on another machine: without Enginewright, in Python and in C++."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from support.compilers import compile_example, find_compilers, require

WRITE = """
import sys
import infer
batch, folder, images = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
for first in range(0, len(images), batch):
    infer.write(f"{folder}/{first}.bin", *images[first : first + batch])
"""


def probabilities(logits):
    odds = np.exp(logits.astype(np.float64) - logits.max())
    return odds / odds.sum()


def require_answers_in_python(bundle, photos, answers):
    """TensorRT may print warnings among the answers."""
    said = require(sys.executable, "infer.py", *photos, cwd=bundle, env=_without_enginewright())
    rows = [line.split("\t") for line in said.splitlines() if line.startswith(str(photos[0].parent))]
    assert [image for image, _, _ in rows] == list(map(str, photos))
    for (_, name, probability), logits in zip(rows, answers, strict=True):
        assert name == f"class {logits.argmax()}"
        assert float(probability) == pytest.approx(probabilities(logits).max(), abs=1e-3)
    verified = require(sys.executable, "verify.py", cwd=bundle, env=_without_enginewright())
    assert verified == "all files are as they were made\n"


def require_answers_in_cpp(bundle, photos, answers, folder: Path):
    """Compile the example in the folder. Where there are several profiles, one of them is of batches of two alone."""
    (folder / "libraries").mkdir()
    compilers = find_compilers(folder / "libraries")
    classify = compile_example(compilers, bundle, folder)
    for batch in (2, 3, 6):
        (written := folder / f"batches of {batch}").mkdir()
        require(sys.executable, "-c", WRITE, batch, written, *photos, cwd=bundle, env=_without_enginewright())
        tensors, parts = written / "images.bin", range(0, len(photos), batch)
        tensors.write_bytes(b"".join((written / f"{first}.bin").read_bytes() for first in parts))
        said = require(classify, bundle / "engine/engine.plan", tensors, env=compilers.environment)
        assert said.split() == [str(logits.argmax()) for logits in answers], f"at batch {batch}"


def _without_enginewright():
    """Return the environment without the folders of PYTHONPATH that have Enginewright."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [each for each in path if each and not Path(each, "enginewright").is_dir()]
    return os.environ | {"PYTHONPATH": os.pathsep.join(others)}
