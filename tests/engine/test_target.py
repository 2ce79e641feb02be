import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.engine.machine import Machine, differences, require_fits, target_of

MACHINE = Machine(
    runtime="tensorrt",
    runtime_version="10.16.1.11",
    device="cuda",
    device_name="NVIDIA A100-SXM4-80GB",
    capability="8.0",
    driver="580.65",
    cuda="13.0",
    cores=8,
    operating_system="Linux x86_64",
)
ONLY_TIMINGS_DEPEND_ON = {"driver": "610.1", "cuda": "13.3", "cores": 64}
OTHER_GPU = {"device_name": "another GPU", **ONLY_TIMINGS_DEPEND_ON}
CPU = {
    "runtime": "openvino",
    "device": "cpu",
    "device_name": "AMD EPYC",
    "capability": "avx2",
    "driver": "",
    "cuda": "",
}


def here(**changes):
    return MACHINE.model_copy(update=changes)


@pytest.fixture
def options(build):
    """Make TensorRT's parameters with some changed."""
    return lambda **chosen: build.tensorrt.model_copy(update=chosen)


def refusal(target, machine):
    with pytest.raises(EnginewrightError) as caught:
        require_fits(target, machine, "engines/int8")
    return str(caught.value)


@pytest.mark.parametrize("changes", [CPU, {"runtime": "onnxruntime"}, {}], ids=["OpenVINO", "ONNX Runtime", "TensorRT"])
def test_an_engine_belongs_to_its_machine(options, changes):
    machine = here(**changes)
    target = target_of(machine, options())
    assert target.capabilities == (machine.capability,)
    for name in ("runtime", "runtime_version", "device", "device_name", "operating_system"):
        assert getattr(target, name) == getattr(machine, name)
    require_fits(target, machine, "engines/int8")


@pytest.mark.parametrize("changed", ONLY_TIMINGS_DEPEND_ON)
@pytest.mark.parametrize("runtime", ["tensorrt", "tensorrt_rtx", "onnxruntime"])
def test_an_engine_for_a_gpu_outlives_another_driver_and_another_number_of_cores(options, runtime, changed):
    """NVIDIA's list names platform, version and GPU. In Kubernetes a driver and a quota of cores change often."""
    machine = here(runtime=runtime, capability="8.9")
    after = machine.model_copy(update={changed: ONLY_TIMINGS_DEPEND_ON[changed]})
    require_fits(target_of(machine, options()), after, "engines/int8")
    assert target_of(machine, options()) == target_of(after, options())  # so that `dvc repro` does not build again


def test_an_engine_for_a_cpu_belongs_to_its_cores(options):
    cpu = here(**CPU)
    assert "cores 8 there and 64 here" in refusal(target_of(cpu, options()), cpu.model_copy(update={"cores": 64}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("runtime", "onnxruntime"),
        ("runtime_version", "10.16.2.1"),
        ("device_name", "NVIDIA H200"),
        ("operating_system", "Linux aarch64"),
    ],
)
def test_a_refusal_names_what_differs_and_the_command(options, field, value):
    sentence = refusal(target_of(MACHINE, options()), here(**{field: value}))
    there = getattr(MACHINE, field)
    assert sentence == (
        f"engines/int8 was built for another machine: {field} {there!r} there and {value!r} here. "
        "Run `dvc repro` to build it here"
    )


def test_a_refusal_names_all_that_differs(options):
    sentence = refusal(target_of(MACHINE, options()), here(**OTHER_GPU, capability="9.0"))
    for part in (
        "device_name 'NVIDIA A100-SXM4-80GB' there and 'another GPU' here",
        "compute capability 8.0 there and 9.0 here",
    ):
        assert part in sentence


def test_options_of_tensorrt_do_not_make_engines_of_other_runtimes_portable(options):
    loose = options(hardware_compatibility="ampere_plus", version_compatible=True)
    machine = here(runtime="onnxruntime")
    assert target_of(machine, loose) == target_of(machine, options())


def test_same_compute_capability_runs_on_any_gpu_of_that_capability(options):
    target = target_of(MACHINE, options(hardware_compatibility="same_compute_capability"))
    require_fits(target, here(**OTHER_GPU), "engines/int8")
    assert differences(target, here(capability="8.6")).keys() == {"compute capability"}
    assert "compute capability 8.0 there and 8.6 here" in refusal(target, here(capability="8.6"))


@pytest.mark.parametrize("capability", ["8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"])
@pytest.mark.parametrize("built_on", ["8.0", "12.0"])
def test_ampere_plus_runs_on_every_gpu_since_ampere(options, built_on, capability):
    """Capabilities are compared as numbers: as text, 10.0 and 12.0 would sort before 8.0."""
    target = target_of(here(capability=built_on), options(hardware_compatibility="ampere_plus"))
    require_fits(target, here(**OTHER_GPU, capability=capability), "engines/int8")


@pytest.mark.parametrize("capability", ["7.5", "7.0", "6.1"])
def test_ampere_plus_does_not_run_on_what_is_older(options, capability):
    target = target_of(MACHINE, options(hardware_compatibility="ampere_plus"))
    assert f"compute capability 8.0 or newer there and {capability} here" in refusal(
        target, here(capability=capability)
    )


@pytest.mark.parametrize("compatibility", ["same_compute_capability", "ampere_plus"])
def test_an_engine_for_other_gpus_still_belongs_to_its_version_and_system(options, compatibility):
    target = target_of(MACHINE, options(hardware_compatibility=compatibility))
    there = here(**OTHER_GPU, runtime_version="10.17.0.1", operating_system="Linux aarch64")
    assert differences(target, there).keys() == {"runtime_version", "operating_system"}


@pytest.mark.parametrize("version", ["10.16.1.11", "10.17.0.1", "10.99", "11.0.0.114", "11.4.0.106"])
def test_a_version_compatible_engine_of_10_runs_on_later_versions_and_on_11(options, version):
    """NVIDIA's support matrix of 11.4 names this pair of major versions."""
    require_fits(target_of(MACHINE, options(version_compatible=True)), here(runtime_version=version), "engines/int8")


@pytest.mark.parametrize(
    ("built", "version"),
    [
        *(("10.16.1.11", version) for version in ("1.7", "12.0.0.1", "100.1", "10.16.1.10", "10.9.0.34")),
        *(("11.4.0.106", version) for version in ("10.16.1.11", "11.3.0.9", "12.0.0.1")),
    ],
)
def test_a_version_compatible_engine_runs_on_no_other_major_and_nothing_older(options, built, version):
    target = target_of(here(runtime_version=built), options(version_compatible=True))
    assert f"runtime_version {built!r} there and {version!r} here" in refusal(target, here(runtime_version=version))


def test_a_version_compatible_engine_still_belongs_to_its_gpu(options):
    target = target_of(MACHINE, options(version_compatible=True))
    assert differences(target, here(device_name="NVIDIA H200", capability="9.0")).keys() == {
        "device_name",
        "compute capability",
    }


def test_an_engine_may_be_portable_to_other_gpus_and_versions_at_once(options):
    target = target_of(MACHINE, options(hardware_compatibility="ampere_plus", version_compatible=True))
    require_fits(target, here(**OTHER_GPU, capability="12.0", runtime_version="10.17.0"), "engines/int8")
    assert differences(target, here(capability="7.5", runtime_version="12.0.0")).keys() == {
        "runtime_version",
        "compute capability",
    }


@pytest.mark.parametrize("capability", ["8.6", "8.9", "12.0"])
def test_an_engine_for_rtx_runs_on_every_gpu_that_it_was_compiled_for(options, capability):
    builder = here(runtime="tensorrt_rtx", runtime_version="1.7.1.116", device_name="none", capability="", driver="")
    target = target_of(builder, options())
    assert target.capabilities == ("8.6", "8.9", "12.0")
    there = here(**OTHER_GPU, runtime="tensorrt_rtx", runtime_version="1.7.1.116", capability=capability)
    require_fits(target, there, "engines/int8")


@pytest.mark.parametrize(
    ("capability", "listed", "wanted"),
    [
        ("8.0", ("8.6", "8.9", "12.0"), "compute capability 8.6, 8.9 or 12.0 there and 8.0 here"),
        ("12.1", ("8.6", "12.0"), "compute capability 8.6 or 12.0 there and 12.1 here"),
        ("8.9", ("12.0",), "compute capability 12.0 there and 8.9 here"),
    ],
)
def test_an_engine_for_rtx_runs_on_no_other_gpu(options, capability, listed, wanted):
    rtx = here(runtime="tensorrt_rtx", runtime_version="1.7.1.116", capability=capability)
    assert wanted in refusal(target_of(rtx, options(compute_capabilities=listed)), rtx)


def test_an_engine_for_rtx_belongs_to_its_version(options):
    """The option that makes TensorRT's engines fit later versions is not one of TensorRT for RTX."""
    rtx = here(runtime="tensorrt_rtx", runtime_version="1.7.1.116", capability="8.9")
    target = target_of(rtx, options(version_compatible=True))
    sentence = refusal(target, rtx.model_copy(update={"runtime_version": "1.8.0.1"}))
    assert "runtime_version '1.7.1.116' there and '1.8.0.1' here" in sentence


@pytest.mark.parametrize(
    ("chosen", "needed"),
    [
        ({}, "8.0"),
        ({"hardware_compatibility": "ampere_plus"}, "8.0 or newer"),
    ],
)
def test_a_machine_without_a_gpu_reads_which_gpu_is_needed(options, chosen, needed):
    assert refusal(target_of(MACHINE, options(**chosen)), here(device_name="none", capability="")) == (
        f"engines/int8 needs a GPU of compute capability {needed}, and this machine shows none. "
        "It stays as it is: run `dvc repro` on a machine with one"
    )


def test_an_engine_for_a_cpu_is_not_said_to_need_a_gpu(options):
    """The capability of a CPU is a list of instruction sets."""
    cpu = here(runtime="openvino", device="cpu", device_name="AMD EPYC", capability="avx2 avx512f")
    sentence = refusal(target_of(cpu, options()), here(runtime="tensorrt_rtx", device_name="none", capability=""))
    assert "GPU of compute capability avx2" not in sentence
    assert "runtime 'openvino' there and 'tensorrt_rtx' here" in sentence
