"""A small detector in an ONNX file as YOLO's exporters write it, and images with labels for it."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

SIDE, CELL = 32, 8
ROW = SIDE // CELL
NAMES = ("red", "green", "blue")


def write_detector(path, form):
    """Write a network that finds cells of one colour. `yolov5` says of each also that it is an object. The sizes of the
    output have names that no input has, as those of Ultralytics' exporter."""
    has_object = form == "yolov5"
    columns = 4 + has_object + len(NAMES)
    kernel, bias = np.zeros((columns, len(NAMES), CELL, CELL), np.float32), np.zeros(columns, np.float32)
    kernel[:4], bias[4:] = 1e-4, -10
    kernel[4 : columns - len(NAMES)] = 20 / CELL**2
    for number in range(len(NAMES)):
        kernel[number - len(NAMES), number] = 20 / CELL**2
    grid = np.stack(np.meshgrid(np.arange(ROW), np.arange(ROW)), 0).reshape(1, 2, -1).astype(np.float32)
    constants = {
        "kernel": kernel, "bias": bias, "grid": grid, "rows": np.array([0, columns, -1]), "two": np.float32(2),
        "half": np.float32(0.5), "cell": np.float32(CELL), "sizes": np.array([2, 2, columns - 4]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["images", "kernel", "bias"], ["found"], strides=[CELL, CELL]),
        helper.make_node("Reshape", ["found", "rows"], ["flat"]),
        helper.make_node("Sigmoid", ["flat"], ["shares"]),
        helper.make_node("Split", ["shares", "sizes"], ["place", "size", "scores"], axis=1),
        *_chain("place", [("Mul", "two"), ("Sub", "half"), ("Add", "grid"), ("Mul", "cell")], "centres"),
        *_chain("size", [("Mul", "two"), ("Pow", "two"), ("Mul", "cell")], "extents"),
        helper.make_node("Concat", ["centres", "extents", "scores"], ["heads"], axis=1),
        helper.make_node("Transpose" if has_object else "Identity", ["heads"], ["output0"], **_order(has_object)),
    ]
    floats = {"images": ["batch", 3, "height", "width"], "output0": ["batch", "Concatoutput0_dim_1", "anchors"]}
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()}
    weights = [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, form, [tensors["images"]], [tensors["output0"]], weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def _chain(first, steps, last):
    names = [first, *(f"{first}_{number}" for number in range(1, len(steps))), last]
    return [
        helper.make_node(kind, [names[number], other], [names[number + 1]])
        for number, (kind, other) in enumerate(steps)
    ]


def _order(has_object):
    return {"perm": [0, 2, 1]} if has_object else {}


def write_images(folder, count=40, seed=0):
    """Write images of two cells of one colour each, with labels, and return the boxes of the last in its pixels."""
    rng = np.random.default_rng(seed)
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    (folder / "data.yaml").write_text(f"names: [{', '.join(NAMES)}]\n")
    for number in range(count):
        pixels, lines, boxes = np.zeros((SIDE, SIDE // 2, 3), np.uint8), [], []
        for place in rng.choice(ROW * ROW // 2, 2, replace=False).tolist():
            (top, left), colour = divmod(place, ROW // 2), int(rng.integers(len(NAMES)))
            pixels[top * CELL : (top + 1) * CELL, left * CELL : (left + 1) * CELL, colour] = 255
            lines.append(f"{colour} {(left + 0.5) * 2 / ROW} {(top + 0.5) / ROW} {2 / ROW} {1 / ROW}\n")
            boxes.append((NAMES[colour], [left * CELL, top * CELL, (left + 1) * CELL, (top + 1) * CELL]))
        Image.fromarray(pixels).save(folder / "images" / f"{number:02}.png")
        Path(folder, "labels", f"{number:02}.txt").write_text("".join(lines))
    return sorted(boxes)
