"""Compare what `calibration.method: auto` may choose ranges by: the mean error of a sample alone, and with it that of
all samples at once.

    python benchmarks/auto_costs.py efficientnet_b0 inception_v3 mobilenet_v2

Each model is trained as in peers.py, in a process and a project of its own. What is printed is the int8 graph as
written against PyTorch, with weights of 8 bits and without rescues, over the validation set.
"""

import argparse
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import peers
import zoo


def run_model(name: str, epochs: int | None) -> None:
    peers.write_params(name, epochs, "cpu")
    zoo.prepare(lambda _, call: call())

    from enginewright.core.files import scratch_folder
    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import SampleSet
    from enginewright.graph.as_written import open_as_written
    from enginewright.graph.onnx_file import load_graph
    from enginewright.precision.calibration import auto
    from enginewright.precision.calibration.calibrate import calibrate_graph
    from enginewright.precision.dialect import Dialect
    from enginewright.precision.in_dialect import Ingredients
    from enginewright.precision.rescue import Attempts

    graph = zoo.made_at("simplified/model.onnx")
    keep, params = Params.read().precisions["int8"].keep, Params.read().calibration
    samples, validation = (SampleSet.open(zoo.made_at(f"samples/{part}")) for part in ("calibration", "validation"))
    wanted = Dialect.read(zoo.made_at("dialect.json")).model_copy(update={"largest_weight": 127})
    exact = open_as_written(load_graph(graph))
    # The geometric mean of the mean error and itself is the mean error.
    by = auto.output_errors
    for title, errors in {"the mean alone": lambda *pair: (by(*pair).mean, by(*pair).mean), "both": by}.items():
        with scratch_folder() as scratch, mock.patch.object(auto, "output_errors", errors):
            ranges = calibrate_graph(graph.parent, samples, params, wanted, None, scratch)
            attempts = Attempts("int8", samples, scratch)
            made = open_as_written(attempts.write(Ingredients(graph, ranges, samples.cycled(1), wanted, keep)))
        pairs = [[each.run(None, dict(feeds))[0] for each in (made, exact)] for feeds in validation.batches(16)]
        found, right = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        mean, at_once = by([[found]], [[right]])
        cosine = np.mean((found * right).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(right, axis=1))
        print(
            f"{name}, by {title}: {mean:.4f} ({at_once:.4f}), "
            f"cosine {cosine:.4f}, agreement {np.mean(found.argmax(1) == right.argmax(1)):.1%}, "
            f"{dict(Counter(ranges.methods.values()))}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--one", action="store_true", help="run the one model in the current folder")
    options = parser.parse_args()
    if options.one:
        run_model(options.models[0], options.epochs)
        return
    told = ["--epochs", str(options.epochs)] if options.epochs else []
    for name in options.models:
        lines = zoo.run_apart(Path(__file__), name, *told)
        print("\n".join(line for line in lines if line.startswith(f"{name}, by")), flush=True)


if __name__ == "__main__":
    main()
