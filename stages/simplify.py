"""Simplify the graph and fold its constants, and check the result against the exported graph."""

from pathlib import Path
from tempfile import TemporaryDirectory

from enginewright.core.files import new_folder
from enginewright.core.params.build import Profile
from enginewright.data.sample_set import SampleSet, checked_feeds
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.data_apart import is_large
from enginewright.graph.files import graph_bytes
from enginewright.graph.onnx_file import check_at_each_size, count_nodes, load_graph, save_graph
from enginewright.graph.passes import rewrite_graph
from enginewright.graph.simplify import (
    SIMPLIFY_LIMIT,
    Simplification,
    fold_constants,
    simplify_graph,
    simplify_large_graph,
)


def simplify(exported: Path, validation: Path, simplified: Path) -> None:
    """Write model.onnx, and what was removed to simplify.json."""
    source = exported / "model.onnx"
    before = load_graph(source)
    checked = checked_feeds(SampleSet.open(validation), Profile.read())
    with new_folder(simplified) as unfinished:
        target = unfinished / "model.onnx"
        with TemporaryDirectory(dir=unfinished) as scratch:
            made = simplify_large_graph(source, Path(scratch)) if is_large(before) else simplify_graph(before)
            after = rewrite_graph(fold_constants(made))
            save_graph(after, target)
        wanted, got = open_as_written(source), open_as_written(target)
        record = Simplification(
            nodes_before=count_nodes(before),
            nodes_after=count_nodes(after),
            bytes_before=graph_bytes(source),
            bytes_after=graph_bytes(target),
            against_exported=check_at_each_size(
                [run_graph(wanted, feeds) for feeds in checked],
                [run_graph(got, feeds) for feeds in checked],
                SIMPLIFY_LIMIT,
                "the simplified graph does not compute what the exported one computes",
            ),
        )
        record.write(unfinished / "simplify.json")
    print(f"{len(before.graph.node)} nodes became {len(after.graph.node)}")
