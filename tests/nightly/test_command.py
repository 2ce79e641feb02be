"""`python -m enginewright.nightly` as a program, on a pipeline that returns prepared measurements."""

import json
import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest
from support.paths import ROOT
from support.project import let_make_run
from support.warm_python import warm_python

from enginewright.measure.history import read_history
from enginewright.measure.records import Verdict

# A replacement for DVC that records its arguments. `--force` returns the next measurements; `broken` names what fails.
PIPELINE = """
import shutil, sys
from pathlib import Path
arguments, calls, waiting = sys.argv[1:], Path("../calls"), sorted(Path("../waiting").iterdir())
with calls.open("a") as file:
    print(*arguments, file=file)
print("what a stage says")
if "--force" in arguments:
    waiting[0].replace("reports/measurements.json")
broken = Path("../broken").read_text()
sys.exit(1 if " ".join(arguments) == broken else 0)
"""


REST_OF_DVC = """
import pkgutil
__path__ = pkgutil.extend_path(__path__, __name__)
from dvc.version import __version__, version_tuple
"""
ENGINE = "0123456789abcdef0123456789abcdef.dir"  # a hash that is not in DVC's cache


def nightly():
    return warm_python() / "python3", "-m", "enginewright.nightly"


class Project:
    def __init__(self, root, run, machine):
        self.root, self.run, self.count = root / "project", run, 0
        (root / "stand-in" / "dvc").mkdir(parents=True)
        (root / "stand-in" / "dvc" / "__init__.py").write_text(REST_OF_DVC)
        (root / "stand-in" / "dvc" / "__main__.py").write_text(PIPELINE)
        (root / "waiting").mkdir()
        (root / "broken").write_text("")
        (self.root / "reports").mkdir(parents=True)
        (self.root / "reports" / "summary.md").write_text("# The report\n\n![Picture](figures/x.png)\n")
        self.verdict()
        machine.write(self.root / "artifacts" / "machine.json")
        shutil.copy(ROOT / "params.yaml", self.root)
        (self.root / "dvc.lock").write_text(f"stages: {{build@int8: {{outs: [{{md5: {ENGINE}}}]}}}}")
        self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "a project")

    def git(self, *arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def verdict(self, **failures):
        Verdict(recommended="int8", failures=failures, unsure={}).write(self.root / "reports" / "verdict.json")

    def fail(self, *arguments):
        (self.root.parent / "broken").write_text(" ".join(arguments))

    def night(self, *measurements, command=None, **environment):
        for each in measurements:
            each.write(self.root.parent / "waiting" / f"{self.count:03}.json")
            self.count += 1
        paths = os.pathsep.join([str(self.root.parent / "stand-in"), str(ROOT)])
        return subprocess.run(
            command or nightly(),
            cwd=self.root,
            capture_output=True,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
            | {"PYTHONPATH": paths, **environment},
        )

    @property
    def calls(self):
        return (self.root.parent / "calls").read_text().splitlines()

    @property
    def nights(self):
        return [night for history in read_history(self.root / "history") for night in history.nights()]


@pytest.fixture
def project(run, machine, tmp_path):
    return Project(tmp_path, run, machine)


def test_the_last_of_three_nights_is_slower_and_red(project, run):
    first, second = project.night(run(13.0, 4.4)), project.night(run(13.0, 4.4))
    third = project.night(run(11.0, 3.7), run(11.0, 3.7))
    assert [done.returncode for done in (first, second, third)] == [0, 0, 3], third.stderr
    assert third.stdout.startswith("# Red: a confirmed regression (int8: ")
    assert "## The report" in third.stdout
    assert "x.png" not in third.stdout
    assert "what a stage says" in third.stderr
    assert "what a stage says" not in third.stdout
    assert [night.good for night in project.nights] == [True, True, False]
    assert {night.revision for night in project.nights} == {project.git("rev-parse", "--short=12", "HEAD")}


def test_a_night_measures_everything_once_then_draws_the_report_and_keeps_plain_json(project, run):
    project.night(run(13.0, 4.4))
    (folder,) = (project.root / "history").iterdir()
    assert {file.name for file in folder.iterdir()} == {
        "good-engines.json", "good.json", "nights.jsonl", "setting.json",
    }  # fmt: skip
    (line,) = map(json.loads, (folder / "nights.jsonl").read_text().splitlines())
    assert line["precision"] == "int8"
    assert [ratio["median"] for ratio in line["ratios"]] == [13.0, 4.4]
    assert json.loads((folder / "good.json").read_text()) == run(13.0, 4.4).model_dump(mode="json")
    assert json.loads((folder / "good-engines.json").read_text()) == {"int8": ENGINE}
    assert project.calls == [
        "repro build reference",
        "repro --force --single-item validate benchmark race",
        "repro report",
        "repro",
    ]
    project.night(run(11.0, 3.7), run(13.0, 4.4))
    assert "repro --force --single-item validate@int8 benchmark@int8 race" in project.calls


def test_a_red_gate_is_recorded_and_red(project, run):
    project.verdict(int8=("cosine 0.9 is below 0.99",))
    project.fail("repro")
    done = project.night(run(13.0, 4.4))
    assert done.returncode == 5, done.stderr
    assert done.stdout.startswith("# Red: the gate is red (int8: cosine 0.9 is below 0.99).")
    assert [night.broken for night in project.nights] == [("cosine 0.9 is below 0.99",)]


def test_a_machine_that_stays_slow_has_its_own_exit_status_which_make_does_not_fail_on(project, run):
    let_make_run(project.root, warm_python())
    nightly = ("bash", "-c", "make nightly")
    assert project.night(run(13.0, 4.4), command=nightly).returncode == 0
    done = project.night(*[run(13.0, 4.4, pace=7.4)] * 4)
    assert done.returncode == 4, done.stderr
    assert "int8 is not raced against the good run's engine: " in done.stderr
    by_make = project.night(*[run(13.0, 4.4, pace=7.4)] * 4, command=nightly)
    assert by_make.returncode == 0
    for slow in (done, by_make):
        assert slow.stderr.splitlines()[-1].startswith("Neither good nor red:")
    red = project.night(run(11.0, 3.7), run(11.0, 3.7), command=nightly)
    assert red.returncode != 0
    assert "# Red: a confirmed regression" in red.stdout


@pytest.mark.parametrize("stage", ["repro build reference", "repro --force --single-item validate benchmark race"])
def test_a_night_with_a_failing_stage_is_an_error_and_not_recorded(project, run, stage):
    project.fail(*stage.split())
    done = project.night(run(13.0, 4.4))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"nightly: `dvc {stage}` failed, as said above; the night is not recorded"
    assert project.nights == []


def test_on_github_the_summary_is_on_the_page_of_the_job(project, run, tmp_path):
    page = tmp_path / "summary"
    page.write_text("what an earlier step wrote\n")
    done = project.night(run(13.0, 4.4), GITHUB_STEP_SUMMARY=str(page))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert page.read_text().startswith("what an earlier step wrote\n# Good: there is no good run to compare with")


def test_an_uncommitted_change_marks_the_revision_as_dirty(project, run):
    with (project.root / "params.yaml").open("a") as file:
        file.write("# a thought\n")
    (project.root / "reports" / "summary.md").write_text("# Another report\n")
    project.night(run(13.0, 4.4))
    assert [night.revision for night in project.nights] == [project.git("rev-parse", "--short=12", "HEAD") + "-dirty"]


def test_a_night_with_another_model_is_a_first_night(project, run):
    project.night(run(13.0, 4.4))
    params = project.root / "params.yaml"
    params.write_text(params.read_text().replace("resnet18", "resnet50"))
    assert project.night(run(3.0, 1.4)).returncode == 0
    assert len(read_history(project.root / "history")) == 2
    params.write_text(params.read_text().replace("method: entropy", "method: max"))
    assert project.night(*[run(2.0, 1.0)] * 2).returncode == 3, "another calibration is not another setting"


@pytest.mark.parametrize("given", [["--confidence", "99"], ["--confidence", "-1"], ["--attempts", "-1"]])
def test_wrong_options_are_refused_before_any_work(given):
    done = subprocess.run([*nightly(), *given], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"argument {given[0]}: " in done.stderr


def test_a_killed_night_leaves_no_dvc_at_work(project):
    """Such a DVC would stand in the way of the next night."""
    (project.root.parent / "stand-in/dvc/__main__.py").write_text(
        "import os, time\nfrom pathlib import Path\nPath('../dvc').write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    paths = os.pathsep.join([str(project.root.parent / "stand-in"), str(ROOT)])
    command = [sys.executable, "-m", "enginewright.nightly"]
    night = subprocess.Popen(command, cwd=project.root, env=os.environ | {"PYTHONPATH": paths})
    told = project.root.parent / "dvc"
    while not (told.exists() and told.read_text()):
        assert night.poll() is None
        time.sleep(0.05)
    dvc = psutil.Process(int(told.read_text()))
    night.kill()
    night.wait()
    dvc.wait(timeout=60)
