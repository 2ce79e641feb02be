"""`enginewright upgrade`."""

from argparse import ArgumentParser, Namespace

SUMMARY = "bring a project to the version that is installed"
EXAMPLES = """\
examples:
  enginewright upgrade
  enginewright upgrade deploy --dry-run    say what would change, and write nothing

After `pip install -U enginewright`: dvc.yaml, params.yaml and the other files that
`enginewright new` laid out are renewed. New parameters come with their comments,
renamed ones are moved, and your own changes stay. It says which stages will
run again. `git checkout` undoes it. Exits 0, or 1 if your changes and those of
the new version cannot be merged; then nothing is written."""


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="here if not given")
    command.add_argument("--dry-run", action="store_true", help="write nothing")


def run(chosen: Namespace) -> int:
    from pathlib import Path

    from enginewright.cli.project.upgrade import upgrade_project

    print(upgrade_project(Path(chosen.folder), chosen.dry_run))
    return 0
