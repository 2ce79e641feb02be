"""`enginewright compare` on made-up runs, as a program."""

import json
import shutil
import subprocess

import pytest
from support.paths import ROOT
from support.warm_python import warm_python

from enginewright.core.errors import EnginewrightError
from enginewright.measure.history import read_measurements


def enginewright(*arguments, folder):
    # In a folder of its own for the lock of races, as one that waits for another says so.
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)}
    command = [warm_python() / "enginewright", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


@pytest.fixture
def project(run, tmp_path):
    """A repository whose committed run was faster than the one in its reports folder."""
    reports = tmp_path / "reports"
    run(13.0, 4.4).write(reports / "measurements.json")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a run"]):
        subprocess.run([*git, *command], check=True)
    run(11.5, 3.9).write(reports / "measurements.json")
    return tmp_path


def test_a_revision_is_compared_with_a_folder(project):
    done = enginewright("compare", "HEAD", "reports", folder=project)
    assert done.returncode == 3, done.stderr
    assert "times eager, batch 8" in done.stdout
    assert "      4.4 -> 3.9 " in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    assert "regression, at a confidence of 99%\n\nRatios leave changes of up to 9% to chance here.\n" in done.stdout
    assert enginewright("compare", "reports", "reports/measurements.json", folder=project).returncode == 0
    assert enginewright("compare", "reports", "HEAD", folder=project).returncode == 0


def test_too_few_samples_have_an_exit_status_where_one_must_be_sure(project, run):
    after = run(13.0, 4.4)
    unsure = after.precisions[0].validation.model_copy(update={"unsure": ("it may be above",), "must_be_sure": True})
    entry = after.precisions[0].model_copy(update={"validation": unsure})
    after.model_copy(update={"precisions": (entry,)}).write(project / "reports" / "measurements.json")
    assert enginewright("compare", "HEAD", "reports", folder=project).returncode == 6
    assert enginewright("compare", "reports", "HEAD", folder=project).returncode == 0


def test_a_comparison_can_be_printed_as_json(project):
    done = enginewright("compare", "HEAD", "reports", "--json", folder=project)
    rows = json.loads(done.stdout)
    assert rows[0]["figure"] == "speed, all together"
    assert rows[0]["outcome"] == "regression"
    assert rows[0]["change"] < -rows[0]["slack"]


def test_a_comparison_that_is_not_possible_has_its_own_exit_status(project, run):
    run(13.0, 4.4, pace=7.4).write(project / "reports" / "measurements.json")
    done = enginewright("compare", "HEAD", "reports", folder=project)
    assert done.returncode == 4
    compared, others, said, hint = done.stdout.split("\n\n")
    assert "relative error" in compared
    assert others.startswith("not comparable:\nint8  speed")
    assert "measure again" in others
    assert said == "no regression, but 1 of 4 figures are not comparable, at a confidence of 99%"
    assert hint == "To tell 3 %, race both runs' engines: --race\n"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "nowhere is no file, no folder, and no git revision with reports/measurements.json"),
        ("\udcff", "\\udcff is no file, no folder, and no git revision"),
        (
            "broken",
            "broken/measurements.json is damaged or of another version of Enginewright (machine: Field required)",
        ),
        (".", ". holds no measurements.json: give the reports folder of a finished run"),
        ("broken/other.json", ". Reports are compared by their measurements.json"),
        ("", "it is empty: was a variable of the shell not set?"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_sentence(project, place, said):
    (project / "broken").mkdir()
    (project / "broken" / "measurements.json").write_text("{}")
    (project / "broken" / "other.json").write_text("{}")
    done = enginewright("compare", "HEAD", place, folder=project)
    assert done.returncode == (1 if place else 2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == (1 if place else 2 + done.stderr.count("\n      "))


def test_what_is_called_like_an_option_of_git_is_a_revision(project, monkeypatch):
    """Git would write into the file."""
    monkeypatch.chdir(project)
    written = project / "new:." / "reports/measurements.json"
    written.parent.mkdir(parents=True)
    with pytest.raises(EnginewrightError, match="no git revision"):
        read_measurements("--output=new")
    assert not written.exists()


def test_measurements_are_read_as_they_were_written(run, tmp_path):
    run(13.0, 4.4).write(tmp_path / "measurements.json")
    assert read_measurements(str(tmp_path)) == run(13.0, 4.4)


def test_a_race_without_engines_is_one_sentence(project, samples):
    shutil.copytree(samples.folder, project / "artifacts" / "samples" / "validation")
    shutil.copy(ROOT / "params.yaml", project)
    for before, said in {
        "reports": "artifacts/engines/int8 is missing: run `dvc checkout` or `dvc repro` in that project\n",
        "HEAD": "HEAD has no dvc.lock, which would name its engines\n",
    }.items():
        done = enginewright("compare", before, "reports", "--race", folder=project)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith(said)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("given", ["99", "high"])
def test_a_confidence_must_be_a_number_between_a_half_and_one(project, given):
    done = enginewright("compare", "HEAD", "reports", "--confidence", given, folder=project)
    assert done.returncode == 2
    assert f"argument --confidence: {given} is no number between 0.5 and 1" in done.stderr
