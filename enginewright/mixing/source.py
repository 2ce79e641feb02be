"""Open what int8 is made of, so that its parts in a mix are its own."""

from collections.abc import Collection
from pathlib import Path

from enginewright.core.params.precisions import Keep
from enginewright.data.sample_set import SampleSet
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.quantization.dialect import Dialect
from enginewright.quantization.in_dialect import Ingredients, rewritten
from enginewright.quantization.rescue.records import Rescued, digest_of, open_calibrated, open_rescued
from enginewright.search.records import SEARCH, spared_layers


def is_searched(converted: Path) -> bool:
    """Tell whether a search, and so a rescue, has shaped the int8 graph in this folder."""
    return (converted / SEARCH).exists()


def open_int8(
    converted: Path, simplified: Path, calibrated: Path, rescued: Path, samples: SampleSet
) -> tuple[Rescued, tuple[str, ...]]:
    """Return what the int8 graph in the folder `converted` is made of, and the layers that its search spared."""
    if not is_searched(converted):
        return open_calibrated(simplified, calibrated, samples), ()
    given = open_rescued(simplified, calibrated, rescued, samples)
    return given, spared_layers(converted / SEARCH, given.ranges, digest_of(rescued))


def for_compiler(
    given: Rescued, spared: Collection[str], samples: SampleSet, wanted: Dialect, keep: Keep, folder: Path
) -> Ingredients:
    """Write the graph as the compiler takes it into the folder, and return it with all that int8 needs."""
    plain = load_graph(given.graph)
    save_graph(rewritten(plain, wanted, "int8") or plain, folder / "model.onnx")
    spared = *given.spared, *spared
    return Ingredients(folder / "model.onnx", given.ranges, samples.cycled(1), wanted, keep, spared, given.rounded)
