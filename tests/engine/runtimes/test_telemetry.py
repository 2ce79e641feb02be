import os
import subprocess
import sys

import pytest
from dvc.env import DVC_NO_ANALYTICS

from enginewright.core.process import start_dvc

OPENVINO = """import openvino; openvino.convert_model
from openvino.tools.ovc import convert_impl; print(convert_impl.tm.__name__)"""
ONNXRUNTIME = """import pathlib, onnx.parser, onnxruntime
text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {y = Relu(x)}'
onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
print([path.name for path in pathlib.Path.home().rglob("*") if path.is_file()])"""
SUPPRESSES = ("CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")


@pytest.mark.parametrize(
    ("program", "said"),
    [(OPENVINO, "openvino.tools.ovc.telemetry_stub"), (ONNXRUNTIME, "[]")],
    ids=["openvino's package has nothing to report with", "onnxruntime writes no identifier of the machine"],
)
def test_libraries_report_to_nobody(program, said, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in SUPPRESSES} | {
        "HOME": str(tmp_path)
    }
    command = [sys.executable, "-c", f"import enginewright; {program}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (said + "\n", "")


def test_dvc_reports_to_nobody_where_no_project_tells_it_so_yet(tmp_path):
    (tmp_path / "dvc.py").write_text(f"import os, sys; sys.exit(os.environ['{DVC_NO_ANALYTICS}'])\n")
    with start_dvc("init", folder=tmp_path, stderr=subprocess.PIPE) as child:
        assert child.communicate()[1] == "true\n"
