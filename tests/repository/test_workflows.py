"""Check the workflows by GitHub's schema, and what they do besides calling make."""

import re
import shutil
import subprocess
import sys

import pytest
from ruamel.yaml import YAML
from support.paths import ROOT

from enginewright.cli.layout import FILES, NIGHTLY

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps_of(path):
    jobs = YAML(typ="safe").load(path.read_text())["jobs"]
    return {name: job["steps"] for name, job in jobs.items()}


def test_the_workflows_follow_githubs_schema():
    program = "from check_jsonschema import main; main()"
    command = [sys.executable, "-c", program, "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", [*WORKFLOWS, FILES / NIGHTLY], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_jobs_have_a_time_limit_and_actions_are_pinned(path):
    jobs = YAML(typ="safe").load(path.read_text())["jobs"]
    assert all(job["timeout-minutes"] <= 180 for job in jobs.values())
    actions = re.findall(r"uses: (\S+)", path.read_text())
    assert actions
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in actions)
    assert len(re.findall(r"uses: \S+  # v\d+\.\d+\.\d+\n", path.read_text())) == len(actions)


def test_ci_runs_the_commands_that_anybody_can_run():
    jobs = steps_of(ROOT / ".github/workflows/ci.yml")
    last = {name: steps[-1] for name, steps in jobs.items()}
    assert last == {"test": {"run": "bash .ci/run"}, "documents": {"run": "make verify-documents"}}


@pytest.mark.parametrize("job", ["cpu", "gpu"])
def test_a_night_is_uploaded_and_kept_whatever_its_colour(job):
    forget, night, upload, keep = steps_of(ROOT / ".github/workflows/nightly.yml")[job][-4:]
    assert forget == {"run": "rm dvc.lock"}
    assert night == {"run": "make nightly"}
    assert upload["if"] == keep["if"] == "${{ !cancelled() }}"
    assert upload["with"]["path"].split() == ["reports", "history"]
    assert keep["run"] == "bash .ci/keep-history"


def test_pip_may_fetch_the_tool_that_builds_nvidias_packages():
    """They are built by wheel_stub, which is in no lock file. `pip install -e '.[tensorrt]'` is what users are told."""
    commands = [step.get("run", "") for step in steps_of(ROOT / ".github/workflows/nightly.yml")["gpu"]]
    (command,) = [command for command in commands if "'.[tensorrt]'" in command]
    assert "isolation" not in command


def test_there_is_a_job_for_each_kind_of_gpu_runner_and_without_one_no_job_waits():
    jobs = YAML(typ="safe").load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]
    assert jobs["gpu"]["if"] == "vars.GPU_RUNNERS != ''"
    assert jobs["gpu"]["strategy"]["matrix"] == {"label": "${{ fromJSON(vars.GPU_RUNNERS || '[]') }}"}
    assert jobs["gpu"]["runs-on"][-1] == "${{ matrix.label }}"
    assert steps_of(ROOT / ".github/workflows/nightly.yml")["gpu"][-2]["with"]["name"].endswith("${{ matrix.label }}")


# The history.


def git(folder, *arguments):
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def runners(tmp_path, monkeypatch):
    """Two clones of one repository, on machines whose git has no name of a user."""
    for name, value in {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    origin, seed = tmp_path / "origin", tmp_path / "seed"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(origin))
    git(tmp_path, "init", "-q", "-b", "main", str(seed))
    for name in (".ci", ".gitattributes", "history/README.md"):
        (seed / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, seed / name)
    (seed / "reports.md").write_text("as committed\n")
    git(seed, "add", ".")
    git(seed, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a project")
    git(seed, "push", "-q", str(origin), "main")
    for name in ("one", "other"):  # as a workflow's checkout
        git(tmp_path, "clone", "-q", "--depth=1", origin.as_uri(), str(tmp_path / name))
    return tmp_path / "one", tmp_path / "other"


def record(runner, line, good, setting="machine"):
    folder = runner / "history" / setting
    folder.mkdir(exist_ok=True)
    with (folder / "nights.jsonl").open("a") as file:
        file.write(f"{line}\n")
    (folder / "good.json").write_text(f"{good}\n")
    (runner / "reports.md").write_text("as the night left it\n")


def keep(runner):
    return subprocess.run(["bash", ".ci/keep-history"], cwd=runner, capture_output=True, text=True)


def test_two_runners_that_end_at_once_keep_both_nights(runners):
    """Both are the same kind of machine, in their first night and in their second: the hardest case."""
    one, other = runners
    for night in ("first", "second"):
        record(one, f"{night}, one", f"{night}, one's")
        record(other, f"{night}, other", f"{night}, other's")
        for runner in runners:
            done = keep(runner)
            assert done.returncode == 0, done.stderr
        git(one, "pull", "-q", "--rebase", "--autostash")
        assert (one / "history/machine/good.json").read_text() == f"{night}, other's\n"
    nights = ["first, one", "first, other", "second, one", "second, other"]
    assert sorted((one / "history/machine/nights.jsonl").read_text().splitlines()) == nights
    assert git(one, "status", "--porcelain", "history") == ""
    assert git(other, "log", "-1", "--format=%an %s").startswith("nightly The night of 20")


def test_two_kinds_of_machine_do_not_conflict(runners):
    one, other = runners
    record(one, "a night", "one's", "cpu")
    record(other, "a night", "other's", "gpu")
    assert [keep(runner).returncode for runner in runners] == [0, 0]
    assert (other / "history/cpu/good.json").read_text() == "one's\n"


def test_only_the_history_is_committed_and_other_files_stay_as_they_are(runners):
    one, _ = runners
    record(one, "a night", "one's")
    assert keep(one).returncode == 0
    assert git(one, "show", "--name-only", "--format=").split() == [
        "history/machine/good.json", "history/machine/nights.jsonl",
    ]  # fmt: skip
    assert (one / "reports.md").read_text() == "as the night left it\n"
    assert keep(one).stdout == "no night to keep\n"


def test_a_history_that_cannot_be_pushed_is_an_error_and_stays_committed(runners):
    one, _ = runners
    record(one, "a night", "one's")
    git(one, "remote", "set-url", "origin", "/nowhere")
    done = keep(one)
    assert done.returncode != 0
    assert done.stderr
    assert "The night of" in git(one, "log", "-1", "--format=%s")
