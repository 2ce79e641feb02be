"""Add to the graph of a detector what chooses among its boxes, so that its outputs have a fixed size, and a count.

The nodes do what enginewright/tasks/boxes.py does. They come after a graph has got its types: no box is quantized."""

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.core.params.model import CHOSEN_ALREADY, CHOSEN_OUTPUTS, OF_QUERIES, BoxesParams
from enginewright.graph.onnx_file import opset_of

FILE = "boxes.json"
LEAST_OPSET = 11  # from which on each of the operators below means the same
INNER = "choose_boxes."  # stands before the names of what is added

END = 2**31 - 1  # of a slice that goes on to the last

# Nodes by form, in ONNX's text format. `first` and `second` are outputs of the network, `raw` four numbers of each box.
PAIR = "raw = Cast <to = 1> (first) given = Cast <to = 1> (second)"
SCORES = {
    "rtdetr": f"{PAIR} scores = Sigmoid (given)",
    "detr": f"""{PAIR}
        shares = Softmax <axis = 2> (given)
        things = Slice (shares, zero, last, two)
        largest, unused = TopK <axis = 2> (things, one)
        is_largest = Equal (things, largest)
        scores = Where (is_largest, things, nothing)""",
    "yolov8": """
        table = Cast <to = 1> (first)
        rows = Transpose <perm = [0, 2, 1]> (table)
        raw = Slice (rows, zero, four, two)
        scores = Slice (rows, four, end, two)""",
    "yolov5": """
        rows = Cast <to = 1> (first)
        raw = Slice (rows, zero, four, two)
        object = Slice (rows, four, five, two)
        of_objects = Slice (rows, five, end, two)
        scores = Mul (object, of_objects)""",
}
SIDES = """
    begins = Slice (raw, zero, two, two)
    extent = Slice (raw, two, four, two)"""
CORNERS = {
    "xyxy": "corners = Identity (raw)",
    "xywh": f"""{SIDES}
        ends = Add (begins, extent)
        corners = Concat <axis = 2> (begins, ends)""",
    "cxcywh": f"""{SIDES}
        half = Div (extent, number_two)
        lowest = Sub (begins, half)
        ends = Add (lowest, extent)
        corners = Concat <axis = 2> (lowest, ends)""",
}
PIXELS = {"pixels": "placed = Identity (corners)", "shares": "placed = Mul (corners, sides)"}
KEPT_OF_ALL = """
    is_likely = Greater (scores, least)
    kept = Where (is_likely, scores, nothing)"""
KEPT_OF_OVERLAPPING = """
    by_class = Transpose <perm = [0, 2, 1]> (scores)
    selected = NonMaxSuppression (placed, by_class, most, iou, least)
    places = Gather <axis = 1> (selected, image_box_class)
    values = GatherND (scores, places)
    shape = Shape (scores)
    none = ConstantOfShape (shape)
    kept = ScatterND (none, places, values)"""
BEST = """
    flat = Reshape (kept, for_each_image)
    best, found = TopK <axis = 1> (flat, most)
    box = Div (found, classes)
    kind = Mod (found, classes)
    column = Reshape (box, in_columns)
    corner_places = Tile (column, four_times)
    best_boxes = GatherElements <axis = 1> (placed, corner_places)
    is_box = Greater (best, nothing)
    ones = Cast <to = 1> (is_box)
    ones_in_columns = Reshape (ones, in_columns)
    chosen_boxes = Mul (best_boxes, ones_in_columns)
    chosen_scores = Mul (best, ones)
    kinds = Cast <to = 1> (kind)
    chosen_classes = Mul (kinds, ones)
    chosen_count = MatMul (ones, a_column_of_ones)"""


class BoxesInGraph(Record):
    """How the graph chooses boxes, as the task and the stage export found it; `how` is None if it does not."""

    outputs: tuple[str, ...] = ()
    how: BoxesParams | None = None
    classes: int = 0
    size: tuple[int, int] | None = None  # height and width of the images, if boxes are shares of them


def choose_in_graph(model: onnx.ModelProto, asked: BoxesInGraph) -> onnx.ModelProto:
    """Return the graph with the chosen boxes as its only outputs, or as it is if boxes are chosen outside."""
    if asked.how is None:
        return model
    if opset_of(model) < LEAST_OPSET:
        raise EnginewrightError(
            f"model.boxes.nms: graph takes opset {LEAST_OPSET} or later, and the graph has {opset_of(model)}: "
            "export it again, or set outside"
        )
    made, names = _with_free_names(model)
    given = [names[output] for output in asked.outputs]
    batch = next(output for output in made.graph.output if output.name == given[0]).type.tensor_type.shape.dim[0]
    known = dict(zip(("first", "second"), given, strict=False))
    known |= {f"chosen_{name}": name for name in CHOSEN_OUTPUTS}
    scores = SCORES.get(asked.how.form, f"{PAIR} scores = Identity (given)")
    corners = CORNERS.get(asked.how.form, CORNERS["cxcywh"])
    kept = KEPT_OF_ALL if asked.how.form in (*OF_QUERIES, *CHOSEN_ALREADY) else KEPT_OF_OVERLAPPING
    text = "\n".join([scores, corners, PIXELS[asked.how.unit], kept, BEST])
    nodes = onnx.parser.parse_graph(f"choice () => () {{ {text} }}").node
    for node in nodes:
        node.name = f"{INNER}{node.output[0]}"
        for tensors in (node.input, node.output):
            tensors[:] = [known.get(name, f"{INNER}{name}") for name in tensors]
    read = {name for node in nodes for name in node.input}
    constants = {f"{INNER}{name}": np.asarray(value) for name, value in _constants(asked).items()}
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(numpy_helper.from_array(constants[name], name) for name in constants if name in read)
    most = asked.how.most
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, *sizes])
        for name, sizes in zip(CHOSEN_OUTPUTS, ((most, 4), (most,), (most,), (1,)), strict=True)
    ]
    for output in outputs:
        output.type.tensor_type.shape.dim[0].CopyFrom(batch)
    del made.graph.output[:]
    made.graph.output.extend(outputs)
    return made


def _with_free_names(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the graph with other names for what is called like one of our outputs, and the new names of its own."""
    import onnx_ir as ir  # here, since it takes a second, and a stage reads the record above

    from enginewright.graph.passes.find import all_values, names_in_use, unused_name

    graph = ir.from_proto(model)
    outputs, taken = [output.name or "" for output in graph.graph.outputs], names_in_use(graph)
    for value in all_values(graph):
        if value.name in CHOSEN_OUTPUTS:
            if value.is_graph_input():
                raise EnginewrightError(
                    f"model.boxes.nms: graph returns {', '.join(CHOSEN_OUTPUTS)}, and an input is called {value.name}: "
                    "rename it, or set outside"
                )
            value.name = unused_name(f"{INNER}{value.name}_of_network", taken)
    return ir.to_proto(graph), dict(zip(outputs, (output.name or "" for output in graph.graph.outputs), strict=True))


def _constants(asked: BoxesInGraph) -> dict[str, ArrayLike]:
    how, size = asked.how, asked.size or (1, 1)
    assert how is not None
    whole = {"zero": 0, "one": 1, "two": 2, "four": 4, "five": 5, "end": END, "last": -1, "most": how.most}
    floats = {"nothing": 0.0, "number_two": 2.0, "iou": how.iou, "least": how.score}
    return {
        **{name: np.array([value], np.int64) for name, value in whole.items()},
        **{name: np.array([value], np.float32) for name, value in floats.items()},
        "sides": np.array([size[1], size[0]] * 2, np.float32),
        "classes": np.array(asked.classes, np.int64),
        "image_box_class": np.array([0, 2, 1]),
        "for_each_image": np.array([0, -1]),
        "in_columns": np.array([0, -1, 1]),
        "four_times": np.array([1, 1, 4]),
        "a_column_of_ones": np.ones((how.most, 1), np.float32),
    }
