"""A small project whose stages run in one process."""

import re
import runpy
import shlex
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

from enginewright.cli.layout import planned_stages
from enginewright.core import process
from enginewright.core.params.all import apply_recipe
from enginewright.engine.record import EngineRecord
from enginewright.measure.records import Validation, Verdict
from support.checkout import checkout
from support.warm_python import warm_python

PRECISION = "int8"  # its chain is the longest: other precisions have the same chain without calibration
STAGES = ("machine", "samples", "weights", "export", "simplify", "reference", "calibrate")
PER_PRECISION = ("rescue", "search", "convert", "build", "validate", "benchmark", "trace")
TINY = """
samples: {validation: 24, calibration: 8, training: 0}
build: {profile: {batch: {min: 1, opt: 2, max: 4}}}
validation: {spot_samples: 4}
benchmark: {batches: [1], requests: [1], seconds: 0.05}
"""


def small_project(folder, monkeypatch, precision):
    root = checkout(folder / "project")
    monkeypatch.chdir(root)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # its machine's lock is not that of other tests
    monkeypatch.syspath_prepend(root)
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    for section in ("precisions", "search"):
        params[section] = {name: each for name, each in params[section].items() if name == precision}
    params["precisions"][precision].setdefault("thresholds", {}).update({"agreement": 0, "metric_drop": 1})
    params.setdefault("validation", {})["must_know"] = False  # few epochs, few samples
    yaml.dump(params, root / "params.yaml")
    return root


def search_nothing():
    text = re.sub(r"(?ms)^search:.*?(?=^mix:)", "search: {}\n", Path("params.yaml").read_text())
    Path("params.yaml").write_text(text)


def lay_over(*recipes):
    for recipe in recipes:
        Path("recipe.yaml").write_text(recipe)
        apply_recipe(Path("recipe.yaml"))


def run_stages(monkeypatch, *stages, only=PRECISION):
    """Run stages as dvc.yaml calls them, but in one process, as importing PyTorch for each would take longest."""
    written = planned_stages()
    params = YAML(typ="safe").load(Path("params.yaml"))
    precision = params["precisions"][only]
    monkeypatch.setattr(process, "outlive_crashes", lambda what: None)  # pytest would go on twice, if it has one thread
    for stage in stages:
        if stage in ("rescue", "search") and only not in params.get("search", {}):
            continue
        command = written[stage].get("do", written[stage])["cmd"]
        command = command.replace("${key}", only).replace("${item.from}", precision["from"])
        command = command.replace("${item.floating}", params.get("mix", {}).get(only, {}).get("floating", ""))
        program, option, package, *arguments = shlex.split(command)
        assert (program, option, package) == ("python3", "-m", "stages")
        monkeypatch.setattr("sys.argv", [package, *arguments])
        if stage == "benchmark":  # the only one that starts processes
            monkeypatch.setattr("sys.executable", str(warm_python() / "python3"))
        runpy.run_module("stages", run_name="__main__")


def run_pipeline(monkeypatch, only=PRECISION):
    run_stages(monkeypatch, *STAGES, *PER_PRECISION, "race", "report", "gate", only=only)
    assert Path("reports/report.html").stat().st_size > 10_000
    assert Verdict.read(Path("reports/verdict.json")).failures == {only: ()}
    record = EngineRecord.read(Path(f"artifacts/engines/{only}/engine.json"))
    assert record.executed.get(only, 0) > 0
    return record, Validation.read(Path(f"reports/validation/{only}.json"))
