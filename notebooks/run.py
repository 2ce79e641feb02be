"""Run tour.ipynb from top to bottom, and keep what it shows: `make notebook`."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TOUR = Path(__file__).with_name("tour.ipynb")


def run(notebook: Path, target: Path) -> None:
    content = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(notebook.parent)}}
    NotebookClient(content, timeout=600, kernel_name="python3", resources=where, record_timing=False).execute()
    content.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(content, target)


if __name__ == "__main__":
    run(TOUR, Path(sys.argv[1]) if len(sys.argv) > 1 else TOUR)
