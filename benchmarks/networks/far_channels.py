"""See what int8 loses of an encoder with a few channels that reach far, as those of BERT do: ours, and NNCF's.

    python benchmarks/networks/far_channels.py            # weights 8 times as large for two channels, trained on
    python benchmarks/networks/far_channels.py --times 1  # the encoder of small_transformers.py as it is

Errors are those of the graphs as written, with weights of 8 bits, over the validation set: the mean over texts, and in
parentheses over all at once. About 10 minutes on two cores.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import peers
import small_transformers
import torch
import zoo
from torch import nn

CHANNELS = [7, 90]
EPOCHS, LEARNING_RATE = 6, 1e-3  # with these channels


def stretch(weights: Path, times: float) -> None:
    """Let two channels reach further, and train the encoder on."""
    model = small_transformers.Encoder()
    model.load_state_dict(torch.load(weights))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight[CHANNELS] *= times
                module.bias[CHANNELS] *= times
            if isinstance(module, small_transformers.Layer):
                for reader in (module.q, module.k, module.v, module.up):
                    reader.weight[:, CHANNELS] /= times
        model.classify.weight[:, CHANNELS] /= times
    torch.manual_seed(0)
    small_transformers.train(model, small_transformers.texts(), EPOCHS, LEARNING_RATE)
    torch.save(model.state_dict(), weights)


def errors() -> Iterator[tuple[str, float, float]]:
    """Yield what each int8 graph loses."""
    import nncf

    from enginewright.core.files import scratch_folder
    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import SampleSet
    from enginewright.graph.as_written import run_optimized
    from enginewright.graph.onnx_file import load_graph
    from enginewright.precision.calibration.auto import output_errors
    from enginewright.precision.dialect import dialect_of
    from enginewright.precision.in_dialect import open_calibrated
    from enginewright.precision.rescue import Attempts, Confirmation

    samples, validation = (SampleSet.open(zoo.made_at(f"samples/{name}")) for name in ("calibration", "validation"))
    keep, wide = Params.read().precisions["int8"].keep, dialect_of("openvino", "cpu", "avx512_vnni")
    given = open_calibrated(zoo.made_at("simplified"), zoo.made_at("calibrated"), samples, wide, keep)
    exact = load_graph(given.graph)

    def answers(graph: onnx.ModelProto) -> np.ndarray:
        run = run_optimized(graph)
        return np.concatenate([next(iter(run(feeds).values())) for feeds in validation.batches(16)])

    wanted = answers(exact)
    trial = Confirmation(exact, samples)
    with scratch_folder() as scratch:
        attempts = Attempts("int8", samples, scratch)
        equalized = attempts.equalize(given, trial)
        both = equalized and attempts.round(equalized, trial)
        for name, made in {"as calibrated": given, "equalize": equalized, "equalize and round": both}.items():
            if made:
                found = answers(attempts.write(made))
                yield name, *output_errors([[found]], [[wanted]])
    batches, told = list(samples.batches(8)), {"model_type": nncf.ModelType.TRANSFORMER}
    exported = onnx.load(zoo.made_at("exported/model.onnx"))
    found = answers(nncf.quantize(exported, nncf.Dataset(batches), subset_size=len(batches), **told))
    yield "NNCF, told", *output_errors([[found]], [[wanted]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=float, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        peers.write_params("encoder", None, "cpu")
        if options.times != 1:
            stretch(Path("data/weights/encoder.pt"), options.times)
        zoo.prepare(lambda what, call: None if what.startswith(("rescue", "search")) else call())
        for name, mean, at_once in errors():
            print(f"{name}: {mean:.4f} ({at_once:.4f})", flush=True)


if __name__ == "__main__":
    main()
