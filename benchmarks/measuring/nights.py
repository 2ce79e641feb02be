"""Run three real nights: a first one, one without a change, and one after a commit that makes int8 slower.

The commit keeps int8's convolutions in float32: an ordinary choice in params.yaml that is slower. Each night is
`python -m enginewright.nightly` in a clone of the last commit, with a copy of DVC's cache; nothing is made up.
Run it after `dvc repro`, where nothing else runs. On a shared host the first night may be disturbed: it has no engine
to race against, and then counts as the good run until there is one:

    python benchmarks/measuring/nights.py

The exit code is 1 if a night does not end as it should: good or disturbed, good, and with a confirmed regression of
int8 alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from enginewright.cli.recipes import apply_recipe
from enginewright.measure.changes import Outcome
from enginewright.measure.history import Night, read_history
from enginewright.nightly.judgement import Status

ROOT = Path(__file__).parents[2]
SLOWER = "precisions: {int8: {keep: {op_types: [Conv]}}}\n"


class Plan(NamedTuple):
    """A night: what it shows, the recipe that is committed before it, and the exit statuses that it may have."""

    what: str
    recipe: str
    wanted: tuple[Status, ...]


PLANS = (
    Plan("the first night", "", (Status.GOOD, Status.NOT_COMPARABLE)),
    Plan("nothing changed", "", (Status.GOOD,)),
    Plan("int8 keeps its convolutions in float32", SLOWER, (Status.REGRESSION,)),
)


def prepare(project: Path) -> None:
    run(project.parent, "git", "clone", "--quiet", str(ROOT), str(project))
    run(project, "git", "config", "user.name", "nights")
    run(project, "git", "config", "user.email", "nights@localhost")
    shutil.copytree(ROOT / ".dvc" / "cache", project / ".dvc" / "cache")
    # It may name files of another machine. Without it, DVC finds this one's in its cache.
    (project / "dvc.lock").unlink()
    shutil.rmtree(project / "history")  # these nights have no others before them
    (project / "history").mkdir()


def change(project: Path, recipe: Path, message: str) -> None:
    """Commit a recipe as a developer would."""
    apply_recipe(recipe, project / "params.yaml")
    run(project, "git", "commit", "--quiet", "--message", message, "params.yaml")


def run(folder: Path, *command: str, log: Path | None = None) -> int:
    """Run a command. Without a log, a failure is an error."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
    }
    if log is None:
        return subprocess.run(command, cwd=folder, env=environment, check=True).returncode
    with log.open("w") as file:
        return subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=file).returncode


def last_night(project: Path) -> list[Night]:
    nights = [night for history in read_history(project / "history") for night in history.nights()]
    return [night for night in nights if night.date == nights[-1].date]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a new folder for the clone and the nights' logs")
    parser.add_argument(
        "--recipe", type=Path, help="parameters to change for all nights, such as recipes/resnet50.yaml"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep.absolute() if chosen.keep else Path(scratch)
        folder.mkdir(exist_ok=True)
        as_wanted = run_nights(folder, chosen.recipe and chosen.recipe.absolute())
    if not as_wanted:
        sys.exit("the nights did not end as they should")


def run_nights(folder: Path, recipe: Path | None) -> bool:
    project = folder / "project"
    prepare(project)
    if recipe:
        change(project, recipe, f"the parameters of {recipe.name}")
    print("| night | minutes | exit status | int8, times PyTorch | regression of | last line |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    as_wanted = True
    for number, plan in enumerate(PLANS, 1):
        if plan.recipe:
            (folder / "slower.yaml").write_text(plan.recipe)
            change(project, folder / "slower.yaml", plan.what)
        start, log = time.monotonic(), folder / f"night-{number}.log"
        status = run(project, sys.executable, "-m", "enginewright.nightly", log=log)
        minutes, said = (time.monotonic() - start) / 60, log.read_text().strip().splitlines()[-1]
        if status == 1:
            sys.exit(f"{plan.what}: {said}")
        night = last_night(project)
        speed = next(entry.speed() for entry in night if entry.precision == "int8")
        worse = [entry.precision for entry in night if entry.outcome == Outcome.REGRESSION]
        regressions = ", ".join(worse) or "none"
        print(f"| {plan.what} | {minutes:.1f} | {status} | {speed:.2f} | {regressions} | {said} |", flush=True)
        as_wanted &= status in plan.wanted and worse == (["int8"] if status == Status.REGRESSION else [])
    return as_wanted


if __name__ == "__main__":
    main()
