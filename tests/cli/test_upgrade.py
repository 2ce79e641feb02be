"""`enginewright upgrade`: a project follows a newer version, and its owner's changes stay."""

import shutil
import subprocess
import sys

import pytest
from support.command import enginewright

from enginewright import __version__
from enginewright.cli.commands import upgrade as upgrading
from enginewright.cli.commands.upgrade import upgrade_project
from enginewright.cli.layout import FILES
from enginewright.core.installing import how_to_install

PLAN, OPTIONS = (FILES / "pipeline.yaml").read_text(), ("code", "parameters")
# What an earlier version had in place of some lines, and as a default.
LINE, EARLIER = "    deps: [artifacts/code/gate.json, reports/verdict.json", "    deps: [reports/verdict.json"
DEFAULT, EARLIER_DEFAULT = '"seconds": 1.5,\n  "baselines"', '"seconds": 2,\n  "baselines"'


def changed(text, changes):
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """A project of an earlier version, as it was laid out."""
    root = tmp_path_factory.mktemp("laid-out")
    subprocess.run(["git", "init", "-q", root], check=True)
    assert enginewright("new", "--model", "resnet18", cwd=root).returncode == 0
    kept = root / ".enginewright"
    for file in (kept / "pipeline.yaml", root / "dvc.yaml"):
        edit(file, {LINE: EARLIER})
    edit(kept / "defaults.json", {DEFAULT: EARLIER_DEFAULT})
    (kept / "version").write_text("0.1.0\n")
    return root


@pytest.fixture
def project(laid_out, tmp_path):
    return shutil.copytree(laid_out, tmp_path / "project")


def edit(file, changes):
    before = file.read_text()
    assert all(old in before for old in changes)
    file.write_text(changed(before, changes))


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts}


def test_an_upgrade_that_was_cut_off_at_any_file_is_finished_by_the_next(laid_out, tmp_path, monkeypatch):
    undisturbed = shutil.copytree(laid_out, tmp_path / "undisturbed")
    upgrade_project(undisturbed, dry_run=False)
    wanted = {path.relative_to(undisturbed): data for path, data in files_of(undisturbed).items()}
    whole = upgrading.write_text
    for writes in range(len(wanted)):
        project, left = shutil.copytree(laid_out, tmp_path / f"after-{writes}"), iter(range(writes))

        def write_text(path, text, left=left):
            next(left)  # no more of them: killed here
            whole(path, text)

        monkeypatch.setattr(upgrading, "write_text", write_text)
        try:
            upgrade_project(project, dry_run=False)
        except StopIteration:
            monkeypatch.setattr(upgrading, "write_text", whole)
            upgrade_project(project, dry_run=False)
        else:
            break
        assert {path.relative_to(project): data for path, data in files_of(project).items()} == wanted
    assert writes > 3


@pytest.mark.parametrize(("yours", "said"), [("", ""), ("benchmark: {seconds: 9}\n", "; yours is 9")])
def test_a_project_follows_a_newer_version_and_its_owners_changes_stay(project, yours, said):
    with (project / "params.yaml").open("a") as file:
        file.write(yours)
    edit(project / "dvc.yaml", {"  samples:\n": "  upload:\n    cmd: make upload\n\n  samples:\n"})
    shutil.rmtree(project / "data/traces")  # which an earlier version did not have
    before, params = files_of(project), (project / "params.yaml").read_text()
    tried = enginewright("upgrade", "--dry-run", cwd=project)
    assert files_of(project) == before
    done = enginewright("upgrade", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert tried.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    for line in (
        f"enginewright 0.1.0 -> {__version__}, in {project}\n",
        f"+{LINE}",
        f"another default: benchmark.seconds is 1.5, and was 2{said}\n",
    ):
        assert line in done.stdout
    assert done.stdout.count("another default") == 1
    assert (project / "params.yaml").read_text() == params
    plan = (project / "dvc.yaml").read_text()
    assert plan == PLAN.replace("  samples:\n", "  upload:\n    cmd: make upload\n\n  samples:\n", 1)
    assert DEFAULT in (project / ".enginewright/defaults.json").read_text()
    assert (project / "data/traces/.gitkeep").exists()
    again = enginewright("upgrade", cwd=project)
    assert again.stdout == f"{project} is of enginewright {__version__} already\n"


def test_a_project_of_before_defaults_compares_the_parameters_as_they_were_laid_out(project):
    (project / ".enginewright/defaults.json").unlink()
    (project / ".enginewright/params.yaml").write_text("benchmark: {seconds: 2, batches: [1, 4, 8, 16]}\n")
    done = enginewright("upgrade", cwd=project)
    assert "another default: benchmark.seconds is 1.5, and was 2\n" in done.stdout
    assert done.stdout.count("another default") == 1
    assert not (project / ".enginewright/params.yaml").exists()


def test_a_project_of_the_old_name_gets_the_new_one(project):
    (project / ".enginewright").rename(project / ".enginery")
    for file in (project / ".enginery/Makefile", project / "Makefile"):
        file.write_text(file.read_text().replace("enginewright", "enginery"))
    (project / "requirements.txt").write_text("enginery[pipeline]==0.2.0\n")
    hint = "Enginewright was called enginery, which is another package now: run `enginewright upgrade`, and write "
    ready = subprocess.run([sys.executable, "-m", "enginewright.pipeline"], cwd=project, capture_output=True, text=True)
    assert f"{hint}enginewright for enginery in Makefile, requirements.txt, as far as it has not\n" in ready.stderr
    tried = enginewright("upgrade", "--dry-run", cwd=project)
    assert f"{hint}enginewright for enginery in {project / 'Makefile'}, {project / 'requirements.txt'}" in tried.stdout
    done = enginewright("upgrade", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"for enginery in {project / 'requirements.txt'}, as far" in done.stdout
    assert (project / "Makefile").read_text() == (FILES / "Makefile").read_text()
    assert (project / ".enginewright/version").read_text() == f"{__version__}\n"
    assert not (project / ".enginery").exists()


def test_what_its_owner_deleted_does_not_come_back(project):
    workflow = project / ".github/workflows/enginewright.yml"
    workflow.unlink()
    for _ in range(2):
        done = enginewright("upgrade", cwd=project)
        assert (done.returncode, done.stderr) == (0, "")
        assert "enginewright.yml" not in done.stdout
        assert not workflow.exists()


def write(name, text):
    return lambda root: (root / name).write_text(text)


def both_changed(root):
    edit(root / "dvc.yaml", {EARLIER: "    deps: [mine, reports/verdict.json"})


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (write(".enginewright/version", "9.0\n"), "is of enginewright 9.0, and"),
        (lambda root: (root / "params.yaml").unlink(), "params.yaml is missing: take it back from git"),
        (write(".enginewright/version", "new\n"), ".enginewright/version holds no version: take it back from git"),
        (lambda root: (root / ".enginewright/version").unlink(), "is no project that `enginewright new` laid out"),
        (both_changed, "dvc.yaml cannot be merged: you and this version changed `deps: [mine, reports/verdict.json"),
        (write("params.yaml", "runtime: [\n"), "params.yaml is not valid YAML: line"),
        (write("params.yaml", "export: {gone: 1}\n"), "params.yaml: export.gone is not a parameter"),
        (lambda root: subprocess.run(["rm", "-r", root / ".git"], check=True), "is in no git repository"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(project, prepare, sentence):
    prepare(project)
    before = files_of(project)
    done = enginewright("upgrade", cwd=project)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert files_of(project) == before


def test_a_project_of_a_later_version_does_not_run(project):
    (project / ".enginewright/version").write_text("9.0\n")
    for module in ("enginewright.pipeline", "stages"):
        arguments = ["machine", *(f"--{name}=x" for name in MACHINE)] if module == "stages" else []
        done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=project, capture_output=True, text=True)
        assert done.returncode == 1
        newer = f"{how_to_install('pipeline')}, of a later version"
        assert f"this project is of enginewright 9.0, and {__version__} is installed: {newer}" in done.stderr


MACHINE = (
    "models", "weights", "calibration", "plugins", "cures", "tuned", "machine", "target", "dialect", "tools", "task",
    "fitting", "tuning",
    *OPTIONS,
)  # fmt: skip
