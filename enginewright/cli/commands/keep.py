"""`enginewright keep`."""

from argparse import ArgumentParser, Namespace

from enginewright.cli.completion import PRECISION, add_completed

SUMMARY = "search no more: write what was found into params.yaml"
EXAMPLES = """\
examples:
  enginewright keep int8

The layers that the search spared go to precisions.int8.keep.nodes,
precisions.int8.from becomes calibrated, and search.int8 is removed, unless
int8 was rescued: rescues come with a search, which then ends at once.
`git checkout params.yaml` undoes it. Exits 0, or 1 if nothing was searched."""


def add_arguments(command: ArgumentParser) -> None:
    add_completed(command, "precision", PRECISION, help="a precision whose `from` is searched")


def run(chosen: Namespace) -> int:
    from enginewright.cli.keep import freeze_search

    print(freeze_search(chosen.precision))
    return 0
