"""The examples of a bundle answer as its engine."""

import pytest
from support.examples import require_answers_in_cpp, require_answers_in_python
from support.gpu import LIMITS, answers_for, answers_meant, command, relative_error
from support.project import make_project


@pytest.fixture(scope="module", params=["plain", "several profiles", "stripped", "with barriers"])
def bundled(request, more_engines, graphs, parted, machine, photos, tmp_path_factory):
    """Return a bundle, and what its engine answers for the photos."""
    engine, graph = more_engines(request.param), (parted if request.param == "with barriers" else graphs)["fp32"]
    project = make_project(tmp_path_factory.mktemp("bundle") / "project", engine, graph, machine)
    done = command("bundle", "fp32", "--out", "bundle", cwd=project)
    assert (done.returncode, done.stdout) == (0, "bundle\n"), done.stderr
    answers = answers_for(photos, engine, machine)
    assert relative_error(answers_meant(photos, engine, graphs["fp32"]), answers) < LIMITS["fp32"]
    assert len(set(answers.argmax(axis=1))) > 1
    return project / "bundle", answers


def test_the_example_in_python_answers_as_the_engine(bundled, photos):
    require_answers_in_python(bundled[0], photos, bundled[1])


def test_the_example_in_cpp_answers_as_the_engine(bundled, photos, tmp_path):
    require_answers_in_cpp(bundled[0], photos, bundled[1], tmp_path)
