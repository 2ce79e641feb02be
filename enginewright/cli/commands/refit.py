"""`enginewright refit`."""

from argparse import ArgumentParser, Namespace

from enginewright.cli.completion import FILE, FOLDER, add_engine, add_path

SUMMARY = "put other weights into an engine, without building it again"
EXAMPLES = """\
examples:
  enginewright refit artifacts/engines/fp16 new/model.onnx --out engines/tuned

For engines of TensorRT with build.tensorrt.refit. The graph must be the same
but for its weights, in the precision of the engine, such as
artifacts/converted/fp16/model.onnx after a new training. The new engine is run
on samples. Exits 1 if it does not compute what its graph means. Whether the
thresholds are kept, `dvc repro` tells."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    add_path(command, "onnx", FILE, metavar="ONNX", help="the graph that has the weights")
    add_path(command, "--out", FOLDER, required=True, metavar="FOLDER", help="the folder of the new engine")


def run(chosen: Namespace) -> int:
    from enginewright.cli.refit import refit_engine

    print(f"{chosen.out}: {refit_engine(chosen.engine, chosen.onnx, chosen.out)}")
    return 0
