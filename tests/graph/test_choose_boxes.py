"""The choice among boxes inside a graph is that of enginewright/tasks/boxes.py."""

import onnx
import openvino
import pytest
from support.detectors import FORMS, outputs_of, passed_through
from support.pass_checks import model_of_text

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.samples import Preprocessing
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.tasks.choose import task_of

SIZE = (80, 120)
IMAGES = Preprocessing(
    resize=SIZE, crop=SIZE, resize_mode="stretch", interpolation="nearest", mean=(0, 0, 0), std=(1, 1, 1)
)


def detector(form, most=40, **more):
    how = BoxesParams(form=form, score=0.3, most=most, nms="graph", **more)
    return task_of("detection", None, [str(number) for number in range(4)], how, IMAGES)


def chosen_in_graph(task, outputs, opset=20):
    wanted = BoxesInGraph.model_validate(task.in_graph({name: values.shape for name, values in outputs.items()}))
    made = choose_in_graph(passed_through(outputs, opset), wanted)
    onnx.checker.check_model(made, full_check=True)
    return made


def in_openvino(model, feeds):
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(openvino.convert_model(model), "CPU", settings)
    found = compiled(feeds)
    return {output.any_name: found[output] for output in compiled.outputs}


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("form", [*FORMS, "shares"])
def test_boxes_chosen_in_a_graph_are_those_chosen_outside(form, opset, tmp_path):
    unit, form = ("shares", "cxcywh") if form == "shares" else ("auto", form)
    task = detector(form, unit=unit)
    outputs = outputs_of(form, images=3)
    outputs[next(iter(outputs))][2] = 0 if form != "rtdetr" else -9  # the last image has nothing
    made = chosen_in_graph(task, outputs, opset)
    onnx.save(made, tmp_path / "model.onnx")
    session = open_as_written(made)
    feeds = {f"given_{name}": values for name, values in outputs.items()}
    wanted = task.as_engine(outputs)
    assert wanted["count"][0] > 10
    for run in (lambda feeds: run_graph(session, feeds), lambda feeds: in_openvino(tmp_path / "model.onnx", feeds)):
        for images in (slice(3), slice(1)):
            found = run({name: values[images] for name, values in feeds.items()})
            assert list(found) == ["boxes", "scores", "classes", "count"]
            for name, values in found.items():
                assert values == pytest.approx(wanted[name][images], rel=1e-5, abs=1e-4), name
    layout = task.layout({name: values.shape for name, values in wanted.items()})
    assert (layout.form, task.settings(layout.form).unit) == ("chosen", "pixels")


def test_names_that_the_outputs_take_are_made_free():
    """The network's own outputs, and what it computes inside, may be called like ours."""
    outputs = outputs_of("xyxy", images=1)
    given = passed_through(outputs, 20)
    given.graph.node[0].input[0], given.graph.input[0].name = "x", "x"
    assert {output.name for output in given.graph.output} == {"boxes", "scores"}
    task = detector("xyxy")
    made = choose_in_graph(
        given, BoxesInGraph.model_validate(task.in_graph({name: values.shape for name, values in outputs.items()}))
    )
    onnx.checker.check_model(made, full_check=True)
    assert {output.name for output in given.graph.output} == {"boxes", "scores"}  # the graph itself stays
    taken = model_of_text("g (float[1,9,4] count) => (float[1,9,4] a) { a = Identity (count) }")
    with pytest.raises(EnginewrightError, match="an input is called count: rename it"):
        choose_in_graph(taken, BoxesInGraph(outputs=("a",), how=BoxesParams(form="yolov5", unit="pixels")))


@pytest.mark.parametrize(
    ("task", "shapes", "told"),
    [
        (detector("auto"), {"o": (1, 300, 6)}, r"^model.boxes.nms: the model chooses .* form end_to_end: set outside"),
        (
            detector("xyxy"),
            {"boxes": (1, 5, 4), "scores": (1, 5, 4)},
            "^model.boxes.most: is 40, and .* 5 boxes of 4 .* 20 at",
        ),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(task, shapes, told):
    with pytest.raises(EnginewrightError, match=told):
        task.in_graph(shapes)


def test_an_old_opset_is_refused():
    with pytest.raises(EnginewrightError, match="takes opset 11 or later, and the graph has 10: export it again"):
        chosen_in_graph(detector("xyxy"), outputs_of("xyxy", images=1), opset=10)
