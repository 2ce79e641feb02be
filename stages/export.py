"""PyTorch to ONNX, with a dynamic batch, checked against PyTorch. A user's own ONNX file is taken as it is."""

from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params import load_params
from enginery.core.records import Export, Weights
from enginery.core.stage import run_stage
from enginery.export import EXPORT_LIMIT, adopt_graph, checked_feeds, export_model
from enginery.graphs import (
    arbiter,
    check_graph,
    count_nodes,
    load_graph,
    opset_of,
    read_interface,
    run_graph,
    save_graph,
)
from enginery.models import RECORD, load_model
from enginery.original import GIVEN_GRAPH, open_original, require_runs
from enginery.samples import SampleSet


def export(weights: Path, validation: Path, exported: Path) -> None:
    """Write model.onnx and export.json."""
    params, samples, original = load_params(), SampleSet.open(validation), open_original(weights)
    name = Weights.read(weights / RECORD).model
    profile = params.build.profile
    example = samples.cycled(profile.batch.max if profile.batch.fixed else 2)
    require_runs(original, example, len(samples.manifest.class_names))
    given = weights / GIVEN_GRAPH
    if given.exists():
        graph = adopt_graph(load_graph(given), example, samples.axes, name)
    else:
        graph = export_model(load_model(weights), example, samples.axes, profile, params.export.opset)
    with new_folder(exported) as unfinished:
        path = unfinished / "model.onnx"
        save_graph(graph, path)
        read_interface(path, profile)
        session = arbiter(path)
        checks = [
            check_graph(
                original(feeds),
                run_graph(session, feeds),
                EXPORT_LIMIT,
                f"export: the ONNX graph of {name} does not compute what PyTorch computes",
            )
            for feeds in checked_feeds(samples, profile)
        ]
        worst = max(checks, key=lambda check: check.relative_error)
        record = Export(opset=opset_of(graph), nodes=count_nodes(graph), against_pytorch=worst)
        record.write(unfinished / "export.json")
    print(f"{len(graph.graph.node)} nodes, opset {record.opset}, error to PyTorch {worst.relative_error:.1e}")


if __name__ == "__main__":
    run_stage(export)
