"""From an empty environment to the first report on the user's own network and images: `make verify-documents`.

It takes minutes, as nothing is made smaller. A folder with the wheel stands for the package index, and the other
packages are those of this environment. test_wheel.py and test_new.py have the parts that are quick.
"""

import json
import sys

import numpy as np
from PIL import Image
from support.release import OTHER_PACKAGES, attempt, build_archives, done

NETS = """
import torch
from torch import nn


def small():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
    return nn.Sequential(*layers)
"""


def test_three_commands_lead_from_an_empty_folder_to_the_first_report(tmp_path):
    index = build_archives(tmp_path)
    project, draw = tmp_path / "project", np.random.default_rng(0)
    (project / "photos").mkdir(parents=True)
    (project / "nets.py").write_text(NETS)
    for number in range(48):
        Image.fromarray(draw.integers(0, 255, (40, 40, 3), np.uint8)).save(project / f"photos/{number}.png")
    done("git", "init", "-q", ".", folder=project)
    done(sys.executable, "-m", "venv", ".venv", folder=project)

    install = (".venv/bin/pip", "install", "--no-deps", "--no-index", "--find-links", index, "enginewright")
    done(*install, folder=project)
    done(".venv/bin/enginewright", "new", "--model", "nets:small", "--images", "photos", "--size", "32", folder=project,
         **OTHER_PACKAGES)  # fmt: skip
    reported = attempt("make", "repro", folder=project, **OTHER_PACKAGES)

    # Sixteen images of noise leave an int8 that need not keep to a limit: then that is what it must say.
    assert reported.returncode == 0 or "gate: int8: " in reported.stderr, reported.stdout + reported.stderr
    assert "nets:small" in (project / "reports/report.html").read_text()
    verdict = json.loads((project / "reports/verdict.json").read_text())
    assert set(verdict["failures"]) == {"fp32", "fp16", "bf16", "int8"}
    assert "is of enginewright" in done(".venv/bin/enginewright", "upgrade", folder=project, **OTHER_PACKAGES)
