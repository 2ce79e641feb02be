"""Race float engines against the exported graph in the same runtime: what simplify and convert change may cost nothing.

    python benchmarks/networks/floats.py                       # the models of MODELS, fp32 and bf16
    python benchmarks/networks/floats.py --precisions fp32 vit # one of them, on a CPU that has no bf16
    python benchmarks/networks/floats.py --table               # the committed rows as Markdown

Each model has a process and a project of its own. Weights are random, as only speed is asked for, those of
normalizations too: OpenVINO leaves out ones and zeros, as a new one has, in float32 and not in bf16. OpenVINO is told
the same of both graphs: how many threads, and in which type it may compute.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import peers
import zoo
from zoo_models import Row

if TYPE_CHECKING:
    from enginewright.core.facts import PrecisionName

ROWS = peers.HERE / "floats.jsonl"
MODELS = (
    "resnet18", "resnet50", "resnext50_32x4d", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small",
    "mobilenet_v3_large", "mnasnet0_5", "shufflenet_v2_x1_0", "densenet121", "googlenet", "inception_v3", "alexnet",
    "vgg11_bn", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny", "swin_t", "swin_v2_t", "vit",
    "vit_b_32", "maxvit_t",
)  # fmt: skip
EXPORTED = "as exported"
TYPES = {"fp32": "f32", "bf16": "bf16"}
SETTINGS = {
    "samples": {"training": 200, "validation": 64, "calibration": 8},
    "weights": {"training": {"epochs": 0}},
    "calibration": {"method": "max"},
    "precisions": {"int8": {"rescue": "none", "thresholds": zoo.WIDE}},  # of which nothing is asked here
}


def run_model(name: str, precisions: list["PrecisionName"], row_file: Path) -> None:
    """Race both graphs in each precision, and write the model's row: our time over the exported graph's, by batch."""
    from enginewright.core.cores import usable_cores
    from enginewright.data.sample_set import SampleSet
    from enginewright.engine.machine import Machine

    peers.write_params(name, 0, "cpu")
    zoo.change_params(SETTINGS)
    zoo.prepare(as_if_trained)
    here, validation = Machine.read(zoo.made_at("machine.json")), SampleSet.open(zoo.made_at("samples/validation"))
    row: Row = {"model": name, "where": f"{here.device_name}, {usable_cores()} cores", "ratios": {}}
    for precision in precisions:
        zoo.make_engine(precision, lambda _, call: call())
        makers: peers.Makers = {
            peers.OURS: partial(peers.our_engine, precision, here),
            EXPORTED: partial(as_exported, TYPES[precision]),
        }
        raced = peers.race_all(makers, validation)
        row["ratios"][precision] = {batch: each[f"over {EXPORTED}"] for batch, each in raced.items()}
    row_file.write_text(json.dumps(row))


def as_if_trained(step: str, call: Callable[[], object]) -> None:
    """Run a stage, and move the weights of normalizations away from ones and zeros."""
    call()
    if step != "weights":
        return
    import torch

    path, generator = zoo.made_at("weights/weights.pt"), torch.Generator().manual_seed(0)
    weights = torch.load(path, weights_only=True)
    for name, array in weights.items():
        is_folded = f"{name.rpartition('.')[0]}.running_mean" in weights  # a BatchNorm, which becomes part of a Conv
        if array.is_floating_point() and array.ndim == 1 and len(array.unique()) == 1 and not is_folded:
            array += 0.1 * torch.randn(array.shape, generator=generator)
    torch.save(weights, path)


def as_exported(number_type: str) -> peers.Contender:
    import openvino

    return peers.openvino_engine(openvino.Core().read_model(zoo.made_at("exported/model.onnx")), number_type)


def table(rows: list[Row]) -> str:
    lines = ["| model | fp32, batch 1 | batch 8 | bf16, batch 1 | batch 8 |", "|---" * 5 + "|"]
    for row in {row["model"]: row for row in rows if "ratios" in row}.values():
        found = [row["ratios"].get(precision, {}).get(batch) for precision in TYPES for batch in ("1", "8")]
        cells = [row["model"], *(peers.with_interval(*ratio) if ratio else "-" for ratio in found)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = zoo.parser_of(__doc__, MODELS, ROWS)
    parser.add_argument("--precisions", nargs="+", choices=list(TYPES), default=list(TYPES))
    options = parser.parse_args()
    if options.table:
        print(table(zoo.read(options.rows)))
    elif options.one:
        run_model(options.models[0], options.precisions, options.one)
    else:
        given = ["--precisions", *options.precisions]
        for row in zoo.on_this_machine(options.models, 1, peers.MINUTES, given, __file__):
            zoo.keep(options.rows, row)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
