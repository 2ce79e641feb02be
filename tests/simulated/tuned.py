"""Tune builds on the simulated machine: tests/engine/test_simulation.py runs this with pytest."""

from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import tensorrt as trt
from support.builds import build_apart, building_here

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord, Tuning
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.graph.files import copy_graph
from enginewright.graph.onnx_file import count_nodes, load_graph, save_graph
from enginewright.graph.passes.for_one_compiler import TO_TRY
from enginewright.measure.race import FEWEST_LAPS
from enginewright.pipeline import tune as search
from enginewright.pipeline.build import BuildPaths, build
from enginewright.pipeline.machine import tuning_plans

HAS_ROUTES = hasattr(trt.IBuilderConfig._real, "build_route")
HAS_TILING = hasattr(trt, "TilingOptimizationLevel")
ENGINE, CONVERTED, TUNED = Path("engines/fp32"), Path("converted"), Path("tuned/fp32.json")
PLAN = Path("tuning/fp32.json")


@pytest.fixture(scope="module", autouse=True)
def built_here():
    with building_here():
        yield


@pytest.fixture(scope="module")
def gpu():
    return describe_machine("auto")


@pytest.fixture
def make(tiny_onnx, gpu, samples, tmp_path, monkeypatch):
    """Run what the two stages do for an engine, on a machine whose engines are slow unless they are tuned."""
    monkeypatch.setattr("enginewright.measure.race.MOST_LAPS", FEWEST_LAPS)  # so much slower that these suffice
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    CONVERTED.mkdir()
    copy_graph(tiny_onnx, CONVERTED)

    def make(seconds=60.0, failure="slow_untuned", here=gpu, **options):
        monkeypatch.setenv("SIMULATED_FAILURE", failure)
        tune = None if seconds is None else {"seconds": seconds}
        profile = {"batch": {"min": 1, "opt": 2, "max": 4}}
        params = Params.model_validate(
            {
                "build": {"profile": profile, "pixels": None, "tensorrt": {"tune": tune, **options}},
                "benchmark": {"batches": [2], "seconds": 0.02},
            }
        )
        target_of(here, params.build.tensorrt).write(tmp_path / "target.json")
        plan = tuning_plans(params, here, TUNED.parent)["fp32"]
        PLAN.parent.mkdir(exist_ok=True)
        PLAN.write_text(f"{plan.model_dump_json(indent=2) if plan else 'null'}\n")
        build(
            params,
            "fp32",
            BuildPaths(
                CONVERTED, tmp_path / "target.json", samples.folder, samples.folder, Path(), PLAN, TUNED.parent, ENGINE
            ),
        )
        return EngineRecord.read(ENGINE / "engine.json")

    return make


@pytest.fixture
def only(monkeypatch):
    """Let a search turn these knobs alone, each with one setting."""
    return lambda **settings: monkeypatch.setattr(search, "knobs", lambda *_: [{k: v} for k, v in settings.items()])


def level(number):
    return partial(search._with, "optimization_level", number)


def test_each_knob_that_a_version_has_is_tried(build):
    offered = search.offered_by(load_runtime("tensorrt"))
    assert (list(offered.tiling), [*chain(*offered.routes)]) == (
        ["fast", "moderate", "full"] if HAS_TILING else [],
        ["-peep:max=2"] if HAS_ROUTES else [],
    )
    known = [*chain(*search.knobs(build, [2, 8], search.Offered(["fast"], [["-peep:max=2"]]), [*TO_TRY]))]
    profiles = ["a profile for batch 2, 8 alone", "a profile tuned for batch 8"]
    assert known[:4] == [*profiles, "optimization level 4", "optimization level 5"]
    assert known[-4:] == ["tiling fast", "no auxiliary streams", "optimization level 2", "route -peep:max=2"]
    assert len(known) == 8 + len(TO_TRY)
    refitted = build.with_option("refit", True)
    assert len([*chain(*search.knobs(refitted, [2, 8], search.Offered(), [*TO_TRY]))]) == 6


def test_a_route_is_set_where_a_version_has_routes(make):
    if not HAS_ROUTES:
        with pytest.raises(EnginewrightError, match=r"has no build\.tensorrt\.build_route: drop it"):
            make(seconds=None, build_route="-peep:max=2")
    else:
        assert make(seconds=None, build_route="-peep:max=2").build.tensorrt.build_route == "-peep:max=2"
        assert "--setBuildRoute=-peep:max=2 " in (ENGINE / "reproduce.sh").read_text()


def test_what_is_faster_is_found_confirmed_and_repeated_without_a_search(make, only, capsys):
    only(faster=level(4))
    found = make()
    tuning = found.tuning
    assert [each.change for each in tuning.tried if each.kept] == ["faster"]
    assert found.build.tensorrt.optimization_level == 4
    assert 1 < tuning.times.low <= tuning.times.middle <= tuning.times.high
    assert tuning.at_batch.keys() == {2}
    assert tuning.error < 1e-5
    assert Tuning.read(TUNED) == tuning
    assert f"fp32: tuned: {tuning.in_words()}\n" in capsys.readouterr().out
    plan = PLAN.read_bytes()
    again = make()
    assert "fp32: tuning," not in capsys.readouterr().out
    assert (again.tuning, again.build, PLAN.read_bytes()) == (tuning, found.build, plan)  # so DVC sees no change


def test_what_answers_otherwise_never_wins_and_what_takes_too_long_is_ended(make, only, monkeypatch):
    only(wrong=partial(search._with, "max_aux_streams", 0))
    found = make(failure="slow_untuned,wrong_tuned")
    (tried,) = found.tuning.tried
    assert (tried.why_not, tried.kept) == ("it answers otherwise than the untuned engine", False)
    assert (found.build, found.tuning.times) == (found.tuning.asked, None)

    build_apart(monkeypatch)

    def slowly(best):
        monkeypatch.setenv("SIMULATED_FAILURE", "slow_build")
        return level(5)(best)

    TUNED.unlink()
    only(slow=slowly, late=level(4))
    found = make(seconds=6)
    assert "took more than" in found.tuning.tried[0].why_not
    assert found.tuning.not_tried == ("late",)
    assert found.tuning.seconds < 9


def test_a_choice_for_another_version_gpu_or_graph_is_not_followed(make, only, capsys):
    only(faster=level(4))
    assert make().build.tensorrt.optimization_level == 4
    found = Tuning.read(TUNED)
    for change in ({"runtime_version": "9.9"}, {"device_name": "Another GPU"}):
        found.model_copy(update=change).write(TUNED)
        capsys.readouterr()
        assert make(seconds=0).tuning is None
        said = capsys.readouterr().out
        assert f"{TUNED} was found with TensorRT" in said
        assert "fp32: not tuned: tuned has nothing for this graph on this machine\n" in said
    found.write(TUNED)
    assert make(seconds=0).build.tensorrt.optimization_level == 4
    graph = load_graph(CONVERTED / "model.onnx")
    graph.graph.node[0].name = "another"
    save_graph(graph, CONVERTED / "model.onnx")
    assert make(seconds=0).build.tensorrt.optimization_level == 3
    capsys.readouterr()
    assert make(seconds=None).tuning is None
    assert "fp32: build.tensorrt.tune: {seconds: " in capsys.readouterr().out


def test_another_graph_of_the_same_is_raced_too_and_kept_beside_the_engine(make, only, monkeypatch):
    name = "the last product as a convolution"
    only(**{name: partial(search._with_change, name)})
    monkeypatch.setattr(search, "is_faster", lambda *_: True)
    found = make()
    assert (found.tuning.best.changes, found.tuning.error < 1e-5) == ((name,), True)
    assert "Gemm" not in count_nodes(load_graph(ENGINE / "tuned.onnx"))
    assert "--onnx=tuned.onnx" in (ENGINE / "reproduce.sh").read_text()
    assert make(seconds=0).tuning == found.tuning
