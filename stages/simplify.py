"""Simplify the graph and fold its constants, and check the result against the exported graph."""

from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params.build import Profile
from enginery.data.sample_set import SampleSet, checked_feeds
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.check import check_at_each_size
from enginery.graph.onnx_file import count_nodes, load_graph, save_graph
from enginery.graph.passes import rewrite_graph
from enginery.graph.simplify import SIMPLIFY_LIMIT, Simplification, fold_constants, simplify_graph


def simplify(exported: Path, validation: Path, simplified: Path) -> None:
    """Write model.onnx, and what was removed to simplify.json."""
    source = exported / "model.onnx"
    before = load_graph(source)
    after = rewrite_graph(fold_constants(simplify_graph(before)))
    checked = checked_feeds(SampleSet.open(validation), Profile.read())
    with new_folder(simplified) as unfinished:
        target = unfinished / "model.onnx"
        save_graph(after, target)
        given, made = open_as_written(source), open_as_written(target)
        record = Simplification(
            nodes_before=count_nodes(before),
            nodes_after=count_nodes(after),
            bytes_before=source.stat().st_size,
            bytes_after=target.stat().st_size,
            against_exported=check_at_each_size(
                [run_graph(given, feeds) for feeds in checked],
                [run_graph(made, feeds) for feeds in checked],
                SIMPLIFY_LIMIT,
                "the simplified graph does not compute what the exported one computes",
            ),
        )
        record.write(unfinished / "simplify.json")
    print(f"{len(before.graph.node)} nodes became {len(after.graph.node)}")
