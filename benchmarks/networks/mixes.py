"""Mix int8 and floating types for some models: what layer times promise, and what a race delivers.

    python benchmarks/networks/mixes.py                         # the models of MODELS
    python benchmarks/networks/mixes.py resnet50                # another one that torchvision knows
    python benchmarks/networks/mixes.py --floating bf16 vit     # on a CPU with AMX
    python benchmarks/networks/mixes.py --jobs 16 resnet50 vit  # side by side, each on its share of the cores
    python benchmarks/networks/mixes.py --table                 # the committed rows as Markdown

Each model has a process and a project of its own. Weights are random but for the last layer, since only speed is asked
for, and thresholds are so wide that nothing breaks them.
"""

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import peers
import zoo
from zoo_models import Row

if TYPE_CHECKING:
    from enginewright.core.facts import PrecisionName
    from enginewright.precision.records import Assignment, Mix

ROWS = peers.HERE / "mixes.jsonl"
MODELS = ("mobilenet_v3_small", "vit", "squeezenet1_1", "resnet18")
MINUTES = 60
SETTINGS = {
    "samples": {"training": 200, "validation": 64, "calibration": 96},
    "weights": {"training": {"epochs": 0}},
    "calibration": {"method": "max"},
    "validation": {"spot_samples": 4},
    "precisions": {
        "int8": {"thresholds": zoo.WIDE},
        "best": {"from": "mixed", "keep": {"op_types": [], "nodes": []}, "thresholds": zoo.WIDE},
    },
}


def run_model(name: str, floating: "PrecisionName", row_file: Path) -> None:
    """Make the engines and their mix in the current folder, and write the model's row."""
    from enginewright.core.params.all import Params
    from enginewright.pipeline.mix import mix
    from enginewright.precision.records import Mix

    peers.write_params(name, 0, "cpu")
    zoo.change_params(SETTINGS | {"mix": {"best": {"floating": floating, "seconds": 1.5, "traces": None}}})
    zoo.prepare(lambda _, call: call())
    made: tuple[PrecisionName, ...] = (floating, "int8")
    for precision in made:
        zoo.make_engine(precision, lambda _, call: call())
    for folder in ("data/traces", "artifacts/mixed"):
        Path(folder).mkdir()
    made_of = ("simplified", "calibrated", "rescued/int8", "converted", "engines", "samples/calibration")
    records = ("dialect.json", "exported/boxes.json", "target.json", "machine.json")
    found = zoo.made_at("mixed/best.json")
    given = [zoo.made_at(place) for place in (*made_of, *records)]
    given += [Path("data/plugins"), Path("data/traces"), found]
    mix(Params.read(), "best", *given)
    row_file.write_text(json.dumps({"model": name} | told(Mix.read(found))))


def told(mix: "Mix") -> Row:
    return {
        "where": mix.machine,
        "floating": mix.types[1],
        "parts": len(mix.blocks),
        "rival": mix.rival,
        "mixed": None if mix.mixed is None else parts_by_float(mix.candidates[mix.mixed].assignment),
        "promised": mix.promised and mix.promised.model_dump(),
        "delivered": mix.delivered and mix.delivered.model_dump(),
        "is_mix": not mix.is_one,
    }


def parts_by_float(assignment: "Assignment") -> dict[str, int]:
    return {name: assignment.count(name) for name in assignment if name != "int8"}


def table(rows: list[Row]) -> str:
    """Write a row for each model that a mix was tried of, name the others, and sum up."""
    made = list({(row["model"], row["floating"]): row for row in rows if "rival" in row}.values())
    tried = [row for row in made if row["delivered"]]
    lines = [
        "| model | parts | fastest alone | mix | promised by layer times | delivered | best is |",
        "|---" * 7 + "|",
    ]
    for row in tried:
        taken = "the mix" if row["is_mix"] else row["rival"]
        speeds = times(row["promised"]), times(row["delivered"])
        cells = [row["model"], row["parts"], row["rival"], mix_in_words(row), *speeds, taken]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for rival in sorted({row["rival"] for row in made}):
        names = [row["model"] for row in made if row["rival"] == rival and not row["delivered"]]
        if names:
            lines.append(f"\nNo mix was worth trying, and best is {rival}, for {len(names)}: {', '.join(names)}.")
    if tried:
        apart = [abs(row["promised"]["middle"] / row["delivered"]["middle"] - 1) for row in tried]
        middle = median(apart)
        lines.append(
            f"\nPromised and delivered are {min(apart):.1%} to {max(apart):.1%} apart, {middle:.1%} in the median."
        )
    return "\n".join(lines)


def mix_in_words(row: Row) -> str:
    """Older rows have a mix of int8 and one float, and the number of its parts alone."""
    parts = row["mixed"] if isinstance(row["mixed"], dict) else {row["floating"]: row["mixed"]}
    return " and ".join(f"{number} part{'s' * (number > 1)} in {name}" for name, number in parts.items())


def times(found: Row) -> str:
    return peers.with_interval(found["middle"], found["low"], found["high"])


def main() -> None:
    parser = zoo.parser_of(__doc__, MODELS, ROWS)
    parser.add_argument("--floating", choices=("fp32", "fp16", "bf16"), default="fp32")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, each on its share of the cores")
    options = parser.parse_args()
    if options.table:
        print(table(zoo.read(options.rows)))
        return
    if options.one:
        if options.jobs > 1:
            tempfile.tempdir = str(Path.cwd())  # where the lock of races lies: else they would wait for each other
        run_model(options.models[0], options.floating, options.one)
        return
    given = ["--floating", options.floating, "--jobs", str(options.jobs)]
    for row in zoo.on_this_machine(options.models, options.jobs, MINUTES, given, __file__):
        zoo.keep(options.rows, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
