"""Mix int8 and a floating type for some models: what layer times promise, and what a race delivers.

    python benchmarks/mixes.py                         # the models of MODELS
    python benchmarks/mixes.py resnet50                # another one that torchvision knows
    python benchmarks/mixes.py --floating bf16 vit     # on a CPU with AMX

Each model has a process and a project of its own. Weights are random but for the last layer, since only speed is asked
for, and thresholds are so wide that nothing breaks them.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import peers
import zoo
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from enginery.core.precisions import PrecisionName

MODELS = ("mobilenet_v3_small", "vit", "squeezenet1_1", "resnet18")
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


def run_model(name: str, floating: "PrecisionName") -> None:
    """Make both engines and their mix in the current folder."""
    from enginery.cli.recipes import apply_recipe
    from stages.mix import mix

    peers.write_params(name, 0, "cpu")
    recipe = Path("recipe.yaml")
    with recipe.open("w") as file:
        YAML().dump(SETTINGS | {"mix": {"best": {"floating": floating, "seconds": 1.5, "traces": None}}}, file)
    apply_recipe(recipe)
    zoo.prepare(lambda _, call: call())
    made: tuple[PrecisionName, ...] = (floating, "int8")
    for precision in made:
        zoo.take(precision, lambda _, call: call())
    for folder in ("data/traces", "artifacts/mixed"):
        Path(folder).mkdir()
    made_of = ("simplified", "calibrated", "rescued/int8", "converted", "engines", "samples/calibration")
    records = ("dialect.json", "exported/boxes.json", "target.json", "machine.json")
    given = [zoo.made_at(place) for place in (*made_of, *records)]
    given += [Path("data/plugins"), Path("data/traces"), zoo.made_at("mixed/best.json")]
    mix("best", *given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--floating", choices=("fp32", "fp16", "bf16"), default="fp32")
    parser.add_argument("--one", action="store_true", help="run the one model in the current folder")
    options = parser.parse_args()
    if options.one:
        run_model(options.models[0], options.floating)
        return
    for name in options.models:
        *_, told = zoo.run_apart(Path(__file__), name, "--floating", options.floating)
        print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main()
