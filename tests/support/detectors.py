"""Outputs of detectors in each form, at random, and a graph that returns what it is given."""

import numpy as np
from onnx import TensorProto, helper

from support.pass_checks import model_of_text

ROWS, CLASSES = 300, 4
FORMS = ("xyxy", "xywh", "cxcywh", "detr", "rtdetr", "yolov8", "yolov5")


def small_detector(form):
    """Return a network of one convolution that returns 16 boxes of each image, as one output or as two."""
    rng, columns = np.random.default_rng(0), 4 + CLASSES
    weights = {"kernel": rng.normal(0, 0.1, (columns, 3, 8, 8)).astype(np.float32), "rows": np.array([0, 0, -1])}
    nodes = "found = Conv <strides = [8, 8]> (input, kernel) flat = Reshape (found, rows) "
    if form == "yolov8":
        nodes, outputs = f"{nodes} table = Sigmoid (flat)", f"float[batch,{columns},16] table"
    else:
        weights["parts"] = np.array([4, CLASSES])
        nodes += "turned = Transpose <perm = [0, 2, 1]> (flat) near, logits = Split <axis = 2> (turned, parts) "
        nodes += "places = Sigmoid (near)"
        outputs = f"float[batch,16,4] places, float[batch,16,{CLASSES}] logits"
    return model_of_text(f"g (float[batch,3,32,32] input) => ({outputs}) {{ {nodes} }}", weights)


def outputs_of(form, images):
    rng = np.random.default_rng(0)
    begin, extent = rng.uniform(0, 60, (images, ROWS, 2)), rng.uniform(5, 40, (images, ROWS, 2))
    boxes = np.concatenate([begin, begin + extent if form in ("xyxy", "end_to_end") else extent], axis=2)
    scores, logits = rng.random((images, ROWS, CLASSES)), rng.normal(0, 2, (images, ROWS, CLASSES + 1))
    objects = rng.random((images, ROWS, 1))
    kinds = rng.integers(0, CLASSES, (images, ROWS, 1))
    found = {
        "detr": {"boxes": boxes / 100, "logits": logits},
        "rtdetr": {"boxes": boxes / 100, "logits": logits[..., 1:]},
        "yolov8": {"table": np.concatenate([boxes, scores], axis=2).transpose(0, 2, 1)},
        "yolov5": {"table": np.concatenate([boxes, objects, scores], axis=2)},
        "end_to_end": {"table": np.concatenate([boxes, objects, kinds], axis=2)},
    }
    named = found.get(form, {"boxes": boxes, "scores": scores})
    return {name: np.ascontiguousarray(values, np.float32) for name, values in named.items()}


def passed_through(outputs, opset):
    """Return a graph whose outputs are its inputs, with any batch."""

    def described(name, values):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *values.shape[1:]])

    graph = helper.make_graph(
        [helper.make_node("Identity", [f"given_{name}"], [name]) for name in outputs],
        "passed_through",
        [described(f"given_{name}", values) for name, values in outputs.items()],
        [described(name, values) for name, values in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
