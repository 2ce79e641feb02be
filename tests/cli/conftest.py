import tempfile

import pytest
from support.int8_project import int8_project


@pytest.fixture
def project(tmp_path, tiny_onnx, build, samples, monkeypatch):
    """Return what lays out a project with an int8 engine of ONNX Runtime."""

    def make():
        root = int8_project(tmp_path, tiny_onnx, build, samples)
        monkeypatch.chdir(root)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its machine's lock is not that of other tests
        return root

    return make
