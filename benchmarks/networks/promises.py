"""Count how often int8 keeps, on samples that nothing has seen, the relative error that a search has promised.

    python benchmarks/networks/promises.py                # NETWORKS, with a split of the samples for each count
    python benchmarks/networks/promises.py mobilenet_v2 vit --splits 20
    python benchmarks/networks/promises.py --table

Each network learns for some epochs from 120 tiles of scikit-learn's two photographs, the encoder from texts. For each
split, other samples are drawn at random to calibrate, rescue and search with, and all that are left see what is lost.
Three errors are allowed in turn: that of params.yaml, and parts of what int8 loses with all layers, so that a search
must spare some. Each search is a row of `--rows`.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import peers
import zoo
from numpy.typing import NDArray
from zoo_models import Row

if TYPE_CHECKING:
    from enginewright.data.sample_set import SampleSet
    from enginewright.precision.records import Search

HERE = Path(__file__).parent
ROWS = HERE / "promises.jsonl"
NETWORKS = (
    "mobilenet_v3_small", "mobilenet_v2", "mnasnet0_5", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "squeezenet1_1",
    "resnet18", "regnet_x_400mf", "regnet_y_400mf", "efficientnet_b0", "densenet121", "vit", "encoder",
    "groupnorm", "convnext", "mixer", "branches", "rows",
)  # fmt: skip
SMALL = ("groupnorm", "convnext", "mixer", "branches", "rows")  # of small_networks.py
COUNTS = (256, 128, 64)  # samples to calibrate and search with, in turns over the splits
PIXELS, TAUGHT, POOL = 64, 120, 640
CLASSES = [str(number) for number in range(10)]  # as many as small_transformers.py knows; the tiles are of eight
PARTS = (0.8, 0.5)  # of what int8 loses with all layers


def tiles(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return squares of the photographs at random places. Their class is the photograph and the quarter."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng, photographs = np.random.default_rng(seed), load_sample_images().images
    pixels, classes = [], []
    for _ in range(count):
        which, side = int(rng.integers(len(photographs))), int(rng.integers(PIXELS // 2, 3 * PIXELS))
        height, width = photographs[which].shape[:2]
        top, left = int(rng.integers(height - side)), int(rng.integers(width - side))
        square = Image.fromarray(photographs[which][top : top + side, left : left + side])
        pixels.append(np.asarray(square.resize((PIXELS, PIXELS))))
        classes.append(4 * which + 2 * (2 * top + side > height) + (2 * left + side > width))
    return np.stack(pixels), np.array(classes)


def prepare_network(name: str) -> None:
    """Make a project in the current folder whose validation samples are a pool to draw from."""
    images, labels = tiles(TAUGHT + POOL, 0)
    Path("data/images").mkdir(parents=True, exist_ok=True)
    if name in SMALL:
        shutil.copyfile(HERE / "small_networks.py", "small_networks.py")
        sys.modules.pop("small_networks", None)  # of the folder before
    peers.write_params("resnet18" if name in SMALL else name, None, "cpu")
    changes: Row = {"calibration": 32, "validation": POOL - 32}
    if name != "encoder":  # which has texts of its own
        np.savez("data/images/tiles.npz", images=images, labels=labels)
        changes |= {"source": "data/images/tiles.npz", "training": TAUGHT, "class_names": CLASSES}
    zoo.change_params({"samples": changes, "build": {"pixels": None}, "search": {"int8": {"seconds": 600}}})
    if name in SMALL:
        zoo.change_params({"model": {"source": f"small_networks:{name}"}})
    zoo.prepare(lambda what, call: None if what.startswith(("rescue", "search")) else call())


def try_splits(splits: int) -> Iterator[Row]:
    """Search in the project with one split after another."""
    from enginewright.data.sample_set import SampleSet
    from enginewright.graph.as_written import run_optimized
    from enginewright.graph.onnx_file import load_graph

    everything = SampleSet.open(zoo.made_at("samples/validation"))
    exact = run_optimized(load_graph(zoo.made_at("simplified/model.onnx")))
    for seed in range(splits):
        count = COUNTS[seed % len(COUNTS)]
        drawn = np.random.default_rng(seed).permutation(len(everything))
        calibrate_with(everything, drawn[:count])
        feeds = [everything.read_at(places) for places in np.array_split(drawn[count:], 64)]
        wanted = np.concatenate([next(iter(exact(each).values())) for each in feeds])
        allowed, all_in_int8 = [0.15], 0.0
        while allowed:
            error, *allowed = allowed
            found = search_with(error)
            if not all_in_int8:
                all_in_int8 = found.path[0].relative_error
                allowed = [part * all_in_int8 for part in PARTS]
            run = run_optimized(load_graph(zoo.made_at("converted/int8/model.onnx")))
            lost = np.concatenate([next(iter(run(each).values())) for each in feeds]) - wanted
            unseen = float(np.linalg.norm(lost) / np.linalg.norm(wanted))
            step = found.chosen
            yield {
                "samples": count,
                "split": seed,
                "allowed": round(error, 5),
                "promised": step.is_promised,
                "seen": round(step.relative_error, 5),
                "at_most": step.at_most and round(step.at_most, 3),
                "unseen": round(unseen, 5),
                "spared": step.spared,
                "layers": len(found.layers),
                "kept": unseen <= error,
            }


def calibrate_with(everything: "SampleSet", places: NDArray[np.int64]) -> None:
    """Make these the calibration samples, and measure ranges and rescue with them."""
    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import MANIFEST, TRUTH, input_file
    from enginewright.pipeline.ranges import RescuePaths, calibrate, rescue

    folder = zoo.made_at("samples/calibration")
    files = [input_file(index) for index in range(len(everything.manifest.inputs))]
    for file in [*files, *([TRUTH] if (everything.folder / TRUTH).exists() else [])]:
        np.save(folder / file, np.load(everything.folder / file)[places])
    drawn = tuple(everything.manifest.samples[place] for place in places)
    everything.manifest.model_copy(update={"samples": drawn}).write(folder / MANIFEST)
    params, dialect = Params.read(), zoo.made_at("dialect.json")
    calibrate(params, Path("data/calibration"), zoo.made_at("simplified"), folder, dialect, zoo.made_at("calibrated"))
    given = [*map(zoo.made_at, ("simplified", "calibrated")), folder, dialect, zoo.made_at("rescued/int8")]
    rescue(params, "int8", RescuePaths(*given))


def search_with(error: float) -> "Search":
    """Search with this relative error allowed, and convert."""
    from enginewright.core.params.all import Params
    from enginewright.pipeline.graphs import ConvertPaths, convert
    from enginewright.pipeline.search import SearchPaths, search
    from enginewright.precision.records import Search

    zoo.change_params({"precisions": {"int8": {"thresholds": zoo.WIDE | {"relative_error": error}}}})
    found = zoo.made_at("searched/int8.json")
    for folder in (found.parent, zoo.made_at("converted")):
        folder.mkdir(exist_ok=True)
    places = ("simplified", "calibrated", "rescued/int8", "samples/calibration", "dialect.json", "code/search.json")
    given = [*map(zoo.made_at, places), found]
    search(Params.read(), "int8", SearchPaths(*given))
    places = ("simplified", "searched", "calibrated", "rescued", "samples/calibration", "dialect.json")
    given = [*map(zoo.made_at, (*places, "exported/boxes.json", "cures.json", "converted/int8"))]
    convert(Params.read(), "int8", ConvertPaths(*given))
    return Search.read(found)


def table(rows: Sequence[Row]) -> str:
    """Return how many promises of each network were kept, with exact intervals."""
    from enginewright.measure.intervals import share

    promises = [row for row in rows if row["promised"]]
    made = Counter(row["network"] for row in promises)
    kept = Counter(row["network"] for row in promises if row["kept"])
    lines = [f"{name}: {kept[name]} of {number} kept" for name, number in made.items()]
    spared = np.mean([row["spared"] / row["layers"] for row in rows])
    whole = f"{len(promises)} of {len(rows)} searches promised; {spared:.0%} of layers spared"
    broken = {(row["network"], row["split"]) for row in promises if not row["kept"]}
    splits = {(row["network"], row["split"]) for row in promises}  # whose promises depend on each other
    for what, count, total in (
        ("promises kept", kept.total(), len(promises)),
        ("splits with all promises kept", len(splits - broken), len(splits)),
    ):
        found = share(count, total)
        whole += f"\n{count} of {total} {what}: {found.low:.1%} to {found.high:.1%}, at 95 %"
    return "\n".join([*lines, whole])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--splits", type=int, default=len(COUNTS))
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true", help="print how many promises were kept, and run nothing")
    options = parser.parse_args()
    rows = options.rows.resolve()
    for name in () if options.table else options.networks:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["XDG_CACHE_HOME"] = folder  # no search goes on from an earlier one
            sys.path.insert(0, folder)  # with the module of a network that is no library's
            prepare_network(name)
            for row in try_splits(options.splits):
                zoo.keep(rows, {"network": name} | row)
    print(table([row for row in zoo.read(rows) if "before" not in row]))  # which has how an earlier search judged


if __name__ == "__main__":
    main()
