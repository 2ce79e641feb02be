"""PyTorch to ONNX, with a dynamic batch, checked against PyTorch."""

from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params import load_params
from enginery.core.records import Export, Weights
from enginery.core.stage import run_stage
from enginery.export import EXPORT_LIMIT, export_model, run_model
from enginery.graphs import CHECKED_SAMPLES, arbiter, check_graph, count_nodes, run_graph, save_graph
from enginery.models import load_model
from enginery.samples import SampleSet


def export(weights: Path, validation: Path, exported: Path) -> None:
    """Write model.onnx and export.json."""
    params = load_params()
    record = Weights.read(weights / "weights.json")
    model = load_model(record.model, record.classes, weights / "weights.pt")
    images = SampleSet.open(validation).read(0, CHECKED_SAMPLES)
    graph = export_model(model, images[:2], params.export.opset)
    with new_folder(exported) as unfinished:
        save_graph(graph, unfinished / "model.onnx")
        check = check_graph(
            run_model(model, images),
            run_graph(arbiter(unfinished / "model.onnx"), images),
            EXPORT_LIMIT,
            f"export: the ONNX graph of {record.model} does not compute what PyTorch computes",
        )
        Export(opset=params.export.opset, nodes=count_nodes(graph), against_pytorch=check).write(
            unfinished / "export.json"
        )
    print(f"{len(graph.graph.node)} nodes, opset {params.export.opset}, error to PyTorch {check.relative_error:.1e}")


if __name__ == "__main__":
    run_stage(export)
