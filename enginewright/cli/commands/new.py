"""`enginewright new`."""

import sys
from argparse import ArgumentParser, Namespace

from enginewright.cli.completion import FILE, add_path

SUMMARY = "lay out the pipeline in your own repository"
EXAMPLES = """\
examples:
  enginewright new                                       asks for what it needs
  enginewright new deploy --model nets:detector --images photos --size 320
  enginewright new --model resnet50 --weights best.pt --images photos
  enginewright new --model model.onnx --images photos --task segmentation
  enginewright new --name pets --model nets:pets         one more model, in pets

Writes dvc.yaml, params.yaml, a Makefile, data/ and a nightly workflow into the
folder, and the lines that git and DVC need. What is there already stays, and
is shown where it differs. Images and weights are copied to data/. How images
become tensors is read from the model's own configuration, asked at a terminal,
or guessed; it says which, and which lines of params.yaml to check. Each model
with a --name has params, reports and a history of its own, and `make all` runs
all of them. Exits 0, or 1 if the folder cannot be a project; then nothing is
written."""
QUESTIONS = {
    "model": "model: a name of torchvision, timm:NAME, package.module:factory, or FILE.onnx [resnet18]",
    "weights": "weights: train, pretrained, given, or a file",
    "images": "images: a folder, FILE.csv, FILE.npz or FILE.npy [scikit-learn's digits]",
    "task": "task: what the outputs mean, see docs/tasks.md [classification]",
}


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="here if not given")
    command.add_argument("--name", help="one of several models: a folder, which shares data/")
    command.add_argument("--model", help="torchvision's NAME, package.module:factory, or FILE.onnx")
    add_path(command, "--images", FILE, type=str, help="a folder of images, a .csv, or arrays, .npz or .npy")
    add_path(command, "--weights", FILE, type=str, help="train, pretrained, given, or a checkpoint")
    command.add_argument("--task", help="what the outputs mean, see docs/tasks.md")
    command.add_argument("--size", type=int, metavar="PIXELS", help="of the images, if not as the model says")


def run(chosen: Namespace) -> int:
    from pathlib import Path

    from enginewright.cli.project.choices import Choices
    from enginewright.cli.project.new import make_project

    given = {name: getattr(chosen, name) for name in Choices._fields}
    ask = _ask if sys.stdin.isatty() else None
    if ask and not any(given.values()):
        given |= {name: ask(f"{question}: ").strip() or None for name, question in QUESTIONS.items()}
    print(make_project(Path(chosen.folder), Choices(**given), chosen.name, ask))
    return 0


def _ask(question: str) -> str:
    try:
        return input(question)
    except EOFError:  # Ctrl-D, which takes what is usual, as Enter does
        print()
        return ""
