"""The boxes of a bundle's C++ example are those of its Python."""

import shutil
import subprocess

import numpy as np
import pytest

from enginery.bundle.pages import render
from enginery.core.params.boxes import BoxesParams
from enginery.tasks.boxes import DISTINCT, PAIRS, find_boxes

ROWS, CLASSES, SIZE = 300, 4, (80, 120)
MAIN = """
#include "boxes.hpp"
#include <cstdio>
#include <fstream>
int main(int count, char** files)
{
    std::vector<std::vector<float>> outputs;
    for (int index = 1; index < count; ++index)
    {
        std::ifstream file(files[index], std::ios::binary | std::ios::ate);
        outputs.emplace_back(static_cast<std::size_t>(file.tellg()) / sizeof(float));
        file.seekg(0);
        file.read(reinterpret_cast<char*>(outputs.back().data()), 4 * static_cast<long>(outputs.back().size()));
    }
    std::vector<float const*> pointers;
    for (auto const& output : outputs)
        pointers.push_back(output.data());
    for (Box const& box : findBoxes(pointers))
        std::printf("%g %g %g %g %g %d\\n", box.left, box.top, box.right, box.bottom, box.score, box.kind);
}
"""


def outputs_of(form):
    rng = np.random.default_rng(0)
    begin, extent = rng.uniform(0, 60, (ROWS, 2)), rng.uniform(5, 40, (ROWS, 2))
    boxes = np.column_stack([begin, begin + extent if form in ("xyxy", "end_to_end") else extent])
    scores, logits = rng.random((ROWS, CLASSES)), rng.normal(0, 2, (ROWS, CLASSES + 1))
    found = {
        "detr": [boxes / 100, logits],
        "rtdetr": [boxes / 100, logits[:, 1:]],
        "yolov8": [np.column_stack([boxes, scores]).T],
        "yolov5": [np.column_stack([boxes, rng.random(ROWS), scores])],
        "end_to_end": [np.column_stack([boxes, rng.random(ROWS), rng.integers(0, CLASSES, ROWS)])],
    }
    return [np.ascontiguousarray(each, np.float32) for each in found.get(form, [boxes, scores])]


@pytest.mark.parametrize("form", ["detr", "yolov8", "yolov5"])
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_boxes_in_cpp_are_those_in_python(form, tmp_path):
    outputs, unit = outputs_of(form), "shares" if form in ("detr", "rtdetr") else "pixels"
    how = BoxesParams(form=form, unit=unit, score=0.3)
    facts = {
        "boxes": how.model_dump() | {"outputs": list(range(len(outputs)))},
        "output_sizes": [each.shape for each in outputs],
        "image_size": SIZE,
        "pairs": PAIRS,
        "distinct": DISTINCT,
    }
    (tmp_path / "boxes.hpp").write_text(render("boxes.hpp.j2", facts))
    (tmp_path / "main.cpp").write_text(MAIN)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O0"]
    subprocess.run(["g++", *flags, "-o", tmp_path / "main", tmp_path / "main.cpp"], check=True)
    for index, output in enumerate(outputs):
        output.tofile(tmp_path / f"{index}.bin")
    files = [tmp_path / f"{index}.bin" for index in range(len(outputs))]
    done = subprocess.run([tmp_path / "main", *files], capture_output=True, text=True, check=True)
    found = np.array([line.split() for line in done.stdout.splitlines()], float)
    assert len(found) > 20
    assert found == pytest.approx(find_boxes(outputs, how, SIZE), abs=1e-3)
