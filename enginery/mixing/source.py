"""Open what int8 is made of, so that its parts in a mix are its own."""

from pathlib import Path

from enginery.core.params.precisions import Keep
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import Ingredients, rewritten
from enginery.quantization.modelopt import named_sizes
from enginery.quantization.rescue.records import digest_of, open_rescued
from enginery.search.records import SEARCH, spared_layers


def is_searched(converted: Path) -> bool:
    """Tell whether a search, and so a rescue, has shaped the int8 graph in this folder."""
    return (converted / SEARCH).exists()


def open_source(
    simplified: Path,
    calibrated: Path,
    rescued: Path,
    converted: Path,
    samples: SampleSet,
    wanted: Dialect,
    keep: Keep,
    folder: Path,
) -> Ingredients:
    """Write the graph as the compiler takes it into the folder, and return it with all that int8 needs."""
    searched = is_searched(converted)
    source, ranges, rounded = open_rescued(simplified, calibrated, rescued if searched else None, samples)
    plain = load_graph(source)
    save_graph(rewritten(plain, wanted, "int8") or plain, folder / "model.onnx")
    sizes = named_sizes(plain, samples.cycled(1))
    spared = spared_layers(converted / SEARCH, ranges, digest_of(rescued)) if searched else ()
    return Ingredients(folder / "model.onnx", ranges, sizes, wanted, keep, spared, rounded)
