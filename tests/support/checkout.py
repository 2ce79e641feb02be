"""A copy of the project to run the pipeline in, as users run it: by `dvc repro`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from support.paths import ROOT
from support.warm_python import warm_python

CARRIED = [
    "enginewright", "stages", "machine", "data", "history", ".dvc/config", ".dvc/plots", ".dvcignore", ".gitignore",
    "dvc.yaml",
]  # fmt: skip
# Eight convolutions in torchvision's modules. Each of SqueezeNet's 26 is exported, rescued, traced and drawn alike.
NETWORK = """
from torch import nn
from torchvision.models.squeezenet import Fire


def network():
    fires = Fire(32, 16, 32, 32), Fire(64, 16, 32, 32)
    body = nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), *fires
    return nn.Sequential(*body, nn.Conv2d(64, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
TINY: dict[str, dict[str, object]] = {
    "model": {"source": "small:network"},
    "samples": {"validation": 48, "training": 128, "calibration": 16},
    "samples.preprocessing": {"resize": 32, "crop": 32},
    "weights": {"training.epochs": 1, "training.size": 32},
    "build": {"profile.batch.min": 1, "profile.batch.opt": 2, "profile.batch.max": 4},
    "validation": {"spot_samples": 8},
    "benchmark": {"batches": [1, 2], "seconds": 0.05},
}
PRECISIONS = ("fp32", "int8")


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.params_file = root / "params.yaml"
        temporary = root.parent / "temporary"  # where the lock of the machine lies: other tests are not waited for
        temporary.mkdir(exist_ok=True)
        self.environment = os.environ | {"TMPDIR": str(temporary)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(warm_python()), str(Path(sys.executable).parent), os.environ["PATH"]])
        modules = os.pathsep.join(filter(None, [str(self.root), self.environment.get("PYTHONPATH")]))
        environment = self.environment | {"PATH": path, "PYTHONPATH": modules}
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)

    def repro(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("dvc", "repro", *arguments)

    def copy(self, root: Path) -> "Project":
        """Return a copy that has its own files. Large ones are linked: nothing writes into a file that is there."""

        def link_or_copy(source: str, target: str) -> None:
            (os.link if Path(source).stat().st_size > 1_000_000 else shutil.copy2)(source, target)

        shutil.copytree(self.root, root, symlinks=True, copy_function=link_or_copy)
        return Project(root)

    def set(self, **changes: object) -> None:
        """Set dotted parameters; None removes."""
        yaml = YAML()
        params = yaml.load(self.params_file.read_text())
        for name, value in changes.items():
            *path, last = name.split(".")
            section = params
            for part in path:
                section = section.setdefault(part, {})
            if value is None:
                section.pop(last, None)
            else:
                section[last] = value
        with self.params_file.open("w") as file:
            yaml.dump(params, file)

    def make_small(self) -> None:
        (self.root / "small.py").write_text(NETWORK)
        for section, values in TINY.items():
            self.set(**{f"{section}.{name}": value for name, value in values.items()})
        self.set(**{"precisions.fp16": None, "precisions.bf16": None})  # their chains are int8's without calibration
        self.set(**{"validation.must_know": False})
        for precision in PRECISIONS:  # a model trained for four steps is not worth guarding
            self.set(**{f"precisions.{precision}.thresholds.{limit}": 0 for limit in ("cosine", "agreement")})
            self.set(**{f"precisions.{precision}.thresholds.relative_error": 10})
            self.set(**{f"precisions.{precision}.thresholds.metric_drop": 1})


def each(*stages: str) -> set[str]:
    return {f"{stage}@{precision}" for stage in stages for precision in PRECISIONS}


def ran(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The stages that were executed; `machine` always is, and is not of interest."""
    return set(re.findall(r"^Running stage '([^']+)'", done.stdout, re.MULTILINE)) - {"machine/dvc.yaml:machine"}


def checkout(root: Path) -> Path:
    """A copy of what the pipeline is made of, without its results."""
    for name in [*CARRIED, "params.yaml"]:
        source = ROOT / name
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    return root
