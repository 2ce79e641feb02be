"""The boxes of a bundle's C++ example are those of its Python."""

import shutil
import subprocess

import numpy as np
import pytest
from support.detectors import outputs_of

from enginewright.bundle.facts import render
from enginewright.core.params.model import BoxesParams
from enginewright.tasks.boxes import DISTINCT, PAIRS, find_boxes
from enginewright.tasks.detection import Detection

SIZE = (80, 120)
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


@pytest.mark.parametrize("form", ["detr", "yolov8", "yolov5", "chosen"])
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_boxes_in_cpp_are_those_in_python(form, tmp_path):
    how = BoxesParams(form=form, unit="shares" if form in ("detr", "rtdetr") else "pixels", score=0.3)
    found = outputs_of(form if form != "chosen" else "xyxy", images=1)
    if form == "chosen":
        found = Detection(None, (), how.model_copy(update={"form": "xyxy", "nms": "graph"}), SIZE).as_engine(found)
    outputs = [values[0] for values in found.values()]
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
