import os
import re
import shutil
import subprocess

import pytest
from support.plugins import plugin_library

from enginewright.core.params.build import Range
from enginewright.engine.machine import Machine, target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.tools import reproduce_script
from enginewright.graph.interface import Interface, TensorSpec

VERSIONS = {
    "tensorrt 10": "10.16.1.11", "tensorrt 11": "11.4.0.106", "tensorrt_rtx 1.4": "1.4.0.76",
    "tensorrt_rtx 1": "1.7.1.116",
}  # fmt: skip
# It treats these options as NVIDIA's source of trtexec does (samples/common of 10.16 and 11.1). It prints what it was
# given, and the content of input files.
FAKE = """\
#!/usr/bin/env bash
if [ "$*" = --help ]; then echo "&&&& RUNNING TensorRT.trtexec [TensorRT v$FAKE_VERSION] [b106]"; exit; fi
printf '%s\\n' "${0##*/}" "$@"
for flag; do case $flag in
    --saveEngine=*) touch "${flag#*=}" ;;
    --loadEngine=*reproduced.plan) [ -e "${flag#*=}" ] || exit 1 ;;
    --*hapes=*) if [ -n "${FAKE_STATIC:-}" ]; then echo "Static model does not take explicit shapes" >&2; exit 1; fi ;;
    --loadInputs=*) IFS=,; for one in ${flag#*=}; do od -An -v -td1 -w100000 "${one##*:}"; done ;;
esac; done
echo
"""
IMAGES = TensorSpec(name="input", dtype="float32", shape=("batch", 3, 8, 8))


@pytest.fixture
def record_of(build, manifest):
    """Make the record of an engine that a version of TensorRT built with some of its options."""

    def make(kind, tf32=True, inputs=(IMAGES,), **options):
        machine = Machine(
            runtime=kind.split()[0],
            runtime_version=VERSIONS[kind],
            device="cuda",
            device_name="NVIDIA H200",
            capability="9.0",
            driver="580.65",
            cuda="13.0",
            cores=8,
            operating_system="Linux x86_64",
        )
        chosen = build.model_copy(
            update={"tf32": tf32, "tensorrt": build.tensorrt.model_copy(update=options)},
        )
        return EngineRecord(
            precision="int8",
            target=target_of(machine, chosen.tensorrt),
            build=chosen,
            files={"engine.plan": "0" * 64},
            bytes=1,
            onnx_sha256="1" * 64,
            onnx_bytes=1,
            interface=Interface(
                inputs=inputs,
                outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 16)),),
            ),
            layers=(),
            build_seconds=1.0,
            preprocessing=manifest.preprocessing,
            class_names=manifest.class_names,
            scores=None,
        )

    return make


@pytest.fixture
def arrived(tmp_path):
    """Run the script with bash, and return the arguments that its commands receive: to build, and to time an engine.

    Both engines, the one that was built here and its own, must be timed in the same way."""

    def run(record, onnx="../../converted/int8/model.onnx", batch=None, **more):
        programs, engine = tmp_path / "bin", tmp_path / "an engine"
        for folder in (programs, engine):
            folder.mkdir(exist_ok=True)
        for name in ("trtexec", "tensorrt_rtx"):
            (programs / name).write_text(FAKE)
            (programs / name).chmod(0o755)
        (engine / "reproduce.sh").write_text(reproduce_script(record, onnx))
        done = subprocess.run(
            ["bash", str(engine / "reproduce.sh"), *([] if batch is None else [str(batch)])],
            cwd=tmp_path,
            env=os.environ
            | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FAKE_VERSION": number(record)}
            | more,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        text = re.sub(r"=\S*/reproduced.plan", "=reproduced.plan", done.stdout)
        building, ours, theirs = re.sub(r":/[^,\s]*/(\d+)", r":\1", text).strip().split("\n\n")
        assert theirs == ours.replace("--loadEngine=engine.plan", "--loadEngine=reproduced.plan")
        return building.splitlines(), ours.splitlines()

    return run


def number(record):
    """Return the version as trtexec prints it."""
    major, minor, patch = map(int, record.target.runtime_version.split(".")[:3])
    return str(10000 * major + 100 * minor + patch)


@pytest.mark.parametrize("kind", VERSIONS)
def test_bash_understands_the_script(record_of, kind, tmp_path):
    (tmp_path / "reproduce.sh").write_text(reproduce_script(record_of(kind), "model.onnx"))
    subprocess.run(["bash", "-n", tmp_path / "reproduce.sh"], check=True)


@pytest.mark.parametrize("kind", VERSIONS)
def test_the_script_names_the_version_of_tensorrt(record_of, kind):
    assert f"of {kind.split()[0]} {VERSIONS[kind]}" in reproduce_script(record_of(kind), "model.onnx").splitlines()[1]


@pytest.mark.parametrize(
    ("kind", "command"),
    [("tensorrt 10", "trtexec"), ("tensorrt 11", "trtexec"), ("tensorrt_rtx 1", "tensorrt_rtx")],
)
def test_it_builds_from_the_same_graph_for_the_same_batches_and_times_both_engines(record_of, arrived, kind, command):
    building, timing = arrived(record_of(kind))
    assert (building[0], timing[0]) == (command, command)
    assert building[1] == "--onnx=../../converted/int8/model.onnx"
    assert {
        "--minShapes=input:2x3x8x8",
        "--optShapes=input:4x3x8x8",
        "--maxShapes=input:8x3x8x8",
        "--builderOptimizationLevel=3",
        "--skipInference",
    } <= set(building)
    assert {"--loadEngine=engine.plan", "--shapes=input:4x3x8x8"} <= set(timing)


@pytest.mark.parametrize(("batch", "used"), [(None, 0), (2, 1), (3, 0), (6, 0), (7, 2)])
def test_each_profile_is_built_and_the_one_that_the_engine_would_choose_is_timed(record_of, arrived, batch, used):
    record = record_of("tensorrt 11")
    ranges = [{"batch": Range(min=low, opt=opt, max=high)} for low, opt, high in [(2, 2, 3), (4, 8, 8)]]
    record = record.model_copy(update={"build": record.build.model_copy(update={"profiles": tuple(ranges)})})
    building, timing = arrived(record, batch=batch)
    first = building.index("--profile=0")
    assert [re.sub("x3x8x8|input:", "", flag) for flag in building[first : first + 12]] == [
        "--profile=0", "--minShapes=2", "--optShapes=4", "--maxShapes=8",
        "--profile=1", "--minShapes=2", "--optShapes=2", "--maxShapes=3",
        "--profile=2", "--minShapes=4", "--optShapes=8", "--maxShapes=8",
    ]  # fmt: skip
    assert f"--useProfile={used}" in timing


def test_a_single_profile_needs_no_number(record_of, arrived):
    assert not [flag for flags in arrived(record_of("tensorrt 11")) for flag in flags if "rofile=" in flag]


@pytest.mark.parametrize(("asked", "timed"), [(None, 4), (2, 2), (7, 7)])
def test_the_batch_size_that_is_timed_may_be_given(record_of, arrived, asked, timed):
    building, timing = arrived(record_of("tensorrt 11"), batch=asked)
    assert f"--shapes=input:{timed}x3x8x8" in timing
    assert "--optShapes=input:4x3x8x8" in building


def test_a_graph_whose_shapes_are_fixed_is_given_none(record_of, arrived):
    fixed = TensorSpec(name="input", dtype="float32", shape=(8, 3, 8, 8))
    building, timing = arrived(record_of("tensorrt 11", inputs=(fixed,)), FAKE_STATIC="yes")
    assert not [flag for flag in building + timing if "hapes=" in flag]
    script = reproduce_script(record_of("tensorrt 11", inputs=(fixed,)), "model.onnx")
    assert "# Usage: bash reproduce.sh\n" in script


def test_only_what_varies_of_a_shape_follows_the_batch_size(record_of, arrived):
    fixed = TensorSpec(name="table", dtype="float32", shape=(8, 4))
    building, timing = arrived(record_of("tensorrt 11", inputs=(IMAGES, fixed)), batch=3)
    assert "--maxShapes=input:8x3x8x8" in building
    assert "--shapes=input:3x3x8x8" in timing


def test_indices_are_zeros_as_those_that_trtexec_makes_up_lie_outside_of_tables(record_of, arrived):
    tokens = TensorSpec(name="tokens:0", dtype="int64", shape=("batch", 5))
    place = TensorSpec(name="place", dtype="int32", shape=("batch", 1))
    _, timing = arrived(record_of("tensorrt 11", inputs=(IMAGES, tokens, place)), batch=3)
    assert "--loadInputs=tokens:0:0,place:1" in timing
    assert [len(line.split()) for line in timing if set(line.split()) == {"0"}] == [8 * 3 * 5, 4 * 3]
    _, timing = arrived(record_of("tensorrt 11"))
    assert not [flag for flag in timing if "loadInputs" in flag]


@pytest.mark.parametrize(
    ("kind", "path", "version", "told"),
    [
        ("tensorrt 11", False, "", "trtexec is not on the PATH, and pip does not install it: NVIDIA's deb, rpm, tar"),
        ("tensorrt_rtx 1", False, "", "tensorrt_rtx is not on the PATH, and pip does not install it: NVIDIA's tar and"),
        ("tensorrt 11", True, "101601", "this trtexec is of TensorRT v101601, and engine.plan can be loaded by"),
    ],
)  # fmt: skip
def test_what_keeps_it_from_running_is_a_sentence(record_of, tmp_path, kind, path, version, told):
    for name in ("bash", "dirname", "grep", "mktemp", "rm"):
        (tmp_path / name).symlink_to(shutil.which(name))
    if path:
        (tmp_path / "trtexec").write_text(FAKE)
        (tmp_path / "trtexec").chmod(0o755)
    (tmp_path / "reproduce.sh").write_text(reproduce_script(record_of(kind), "model.onnx"))
    environment = {"PATH": str(tmp_path), "FAKE_VERSION": version}
    done = subprocess.run(["bash", str(tmp_path / "reproduce.sh")], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == 1


def test_a_portable_engine_may_be_timed_by_a_later_trtexec(record_of, arrived):
    record = record_of("tensorrt 11", version_compatible=True)
    arrived(record, FAKE_VERSION="110500")


def test_version_10_is_given_options_that_version_11_no_longer_needs(record_of, arrived):
    building, timing = arrived(record_of("tensorrt 10"))
    assert "--stronglyTyped" in building
    assert "--useCudaGraph" in timing
    assert "--useSpinWait" in timing
    building, timing = arrived(record_of("tensorrt 11"))
    assert "--stronglyTyped" not in building
    assert "--useCudaGraph" not in timing
    assert "--useSpinWait" not in timing


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("tensorrt 10", []),
        ("tensorrt 11", ["--includeDataTransfers"]),
        ("tensorrt_rtx 1.4", []),
        ("tensorrt_rtx 1", ["--includeDataTransfers"]),
    ],
)
def test_times_include_the_copies(record_of, arrived, kind, flags):
    """Versions 10, and 1.4 of TensorRT for RTX, include them by default. Later ones need an option for it."""
    _, timing = arrived(record_of(kind))
    assert [flag for flag in timing if "DataTransfers" in flag] == flags


@pytest.mark.parametrize("kind", ["tensorrt_rtx 1.4", "tensorrt_rtx 1"])
def test_rtx_captures_graphs_and_specializes_kernels_as_in_nvidias_examples(record_of, arrived, kind):
    _, timing = arrived(record_of(kind))
    assert {"--rtxCudaGraphStrategy=wholeGraph", "--specializeStrategyDS=eager"} <= set(timing)
    assert ("--useSpinWait" in timing) == (kind == "tensorrt_rtx 1.4")


@pytest.mark.parametrize("kind", ["tensorrt 10", "tensorrt 11"])
def test_kernels_are_timed_as_often_as_in_the_build(record_of, arrived, kind):
    assert "--avgTiming=8" in arrived(record_of(kind))[0]
    assert "--avgTiming=2" in arrived(record_of(kind, avg_timing_iterations=2))[0]


@pytest.mark.parametrize("kind", VERSIONS)
@pytest.mark.parametrize(("library", "how"), [("registers itself", "static"), ("hands out", "dynamic")])
def test_trtexec_loads_the_plugins_of_the_engine_in_the_way_that_they_are_made_for(
    record_of, arrived, tmp_path, kind, library, how
):
    plugin_library(tmp_path / "an engine/my plugin.so", library)
    record = record_of(kind, plugins=("data/plugins/my plugin.so",))
    loads = f"--{how}Plugins={tmp_path}/an engine/my plugin.so"
    building, timing = arrived(record)
    assert {loads, "--enablePluginOverride"} <= set(building)
    assert loads in timing
    assert not [flag for flags in arrived(record_of(kind)) for flag in flags if "lugin" in flag]


@pytest.mark.parametrize("kind", VERSIONS)
@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"workspace_mb": 512}, "--memPoolSize=workspace:512M"),
        ({"tf32": False}, "--noTF32"),
        ({"optimization_level": 5}, "--builderOptimizationLevel=5"),
        ({"tiling_optimization_level": "fast"}, "--tilingOptimizationLevel=1"),
        ({"tiling_optimization_level": "full"}, "--tilingOptimizationLevel=3"),
        ({"max_aux_streams": 0}, "--maxAuxStreams=0"),
        ({"weights": "stripped"}, "--stripWeights"),
        ({"refit": True}, "--refit"),
        ({"streaming": True}, "--allowWeightStreaming"),
    ],
)
def test_an_option_of_the_build_is_passed_on_only_if_it_was_used(record_of, arrived, kind, options, flag):
    chosen, _ = arrived(record_of(kind, **options))
    plain, _ = arrived(record_of(kind))
    assert flag in chosen
    assert flag not in plain


@pytest.mark.parametrize("kind", VERSIONS)
def test_engines_get_the_weights_that_they_lack_and_stream_them(record_of, arrived, kind):
    """trtexec refits only where it is told that the plan can be refitted, and streams only where it is allowed."""
    _, timing = arrived(record_of(kind, weights="stripped", streaming=True), onnx="../the model.onnx")
    assert {"--refit", "--refitFromOnnx=../the model.onnx"} <= set(timing)
    assert {"--allowWeightStreaming", "--weightStreamingBudget=-1"} <= set(timing)
    _, timing = arrived(record_of(kind, streaming=True, refit=True), WEIGHTS_ON_GPU="20%")
    assert "--weightStreamingBudget=20%" in timing
    assert not [flag for flag in timing if "efit" in flag]


def test_an_older_trtexec_cannot_put_weights_in(record_of):
    record = record_of("tensorrt 10", weights="stripped")
    target = record.target.model_copy(update={"runtime_version": "10.3.0"})
    script = reproduce_script(record.model_copy(update={"target": target}), "model.onnx")
    assert "TensorRT v100300" in script
    assert 'fail "trtexec of 10.3.0 cannot put weights into a plan that has none: 10.14 and newer can' in script
    assert "cannot put weights" not in reproduce_script(record, "model.onnx")


@pytest.mark.parametrize("kind", ["tensorrt 10", "tensorrt 11"])
@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"hardware_compatibility": "ampere_plus"}, "--hardwareCompatibilityLevel=ampere+"),
        ({"hardware_compatibility": "same_compute_capability"}, "--hardwareCompatibilityLevel=sameComputeCapability"),
        ({"version_compatible": True}, "--versionCompatible"),
    ],
)
def test_a_portable_engine_is_reproduced_as_a_portable_one(record_of, arrived, kind, options, flag):
    portable, _ = arrived(record_of(kind, **options))
    plain, _ = arrived(record_of(kind))
    assert set(portable) - set(plain) == {flag}
    assert set(plain) <= set(portable)


@pytest.mark.parametrize("kind", ["tensorrt 10", "tensorrt 11"])
def test_a_version_compatible_engine_is_loaded_as_one(record_of, arrived, kind):
    """It contains a runtime, which trtexec runs only with this option."""
    _, timing = arrived(record_of(kind, version_compatible=True))
    assert "--versionCompatible" in timing
    _, timing = arrived(record_of(kind))
    assert "--versionCompatible" not in timing


def test_rtx_builds_for_the_gpus_that_the_engine_is_for(record_of, arrived):
    """By default TensorRT for RTX builds for all GPUs, and fails if one of them cannot execute fp8."""
    building, _ = arrived(record_of("tensorrt_rtx 1", compute_capabilities=("8.9", "12.0")))
    assert "--computeCapabilities=89,120" in building


def test_nothing_is_written_into_the_engines_folder(record_of, arrived, tmp_path):
    """DVC would find the engine changed, and build it again."""
    arrived(record_of("tensorrt 11"))
    assert [path.name for path in (tmp_path / "an engine").iterdir()] == ["reproduce.sh"]


def test_options_that_rtx_lacks_are_not_passed_to_it(record_of, arrived):
    loose = record_of("tensorrt_rtx 1", hardware_compatibility="ampere_plus", version_compatible=True)
    assert arrived(loose) == arrived(record_of("tensorrt_rtx 1"))


@pytest.mark.parametrize("path", ["../my models/model.onnx", "../it's $HOME/`pwd`/a;b.onnx", "../größe/*.onnx"])
def test_a_path_with_any_characters_arrives_unchanged(record_of, arrived, path):
    building, _ = arrived(record_of("tensorrt 11"), onnx=path)
    assert building[1] == f"--onnx={path}"


def test_the_script_works_from_any_folder(record_of, tmp_path):
    """Its paths are relative to the folder of the engine."""
    lines = reproduce_script(record_of("tensorrt 11"), "model.onnx").splitlines()
    (tmp_path / "where.sh").write_text("\n".join(lines[: lines.index('cd "$(dirname "$0")"') + 1]) + "\npwd\n")
    done = subprocess.run(["bash", str(tmp_path / "where.sh")], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path.resolve())


def test_a_command_that_fails_ends_the_script(record_of, tmp_path):
    """To time the earlier engine after a failed build would look like a success."""
    (tmp_path / "trtexec").write_text("#!/usr/bin/env bash\n[ $1 = --help ] && exit\necho called\nexit 3\n")
    (tmp_path / "trtexec").chmod(0o755)
    (tmp_path / "reproduce.sh").write_text(reproduce_script(record_of("tensorrt 11"), "model.onnx"))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(tmp_path / "reproduce.sh")], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "called\n")
