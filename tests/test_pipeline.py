"""The whole pipeline on a tiny setting, run as users run it: by `dvc repro` in a checkout of its own."""

import csv
import json
import re

import boto3
import pytest
import simulated
from moto.server import ThreadedMotoServer
from support.checkout import PRECISIONS, Project, checkout, each, ran

from enginewright.targets.answer import Answer
from enginewright.targets.file import Fleet
from enginewright.targets.page import as_text

LOOSE = {"cosine": 0, "relative_error": 10, "agreement": 0, "metric_drop": 1}
KEPT = {"op_types": [], "nodes": []}
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")
INT8_CHAIN = {"convert@int8", "build@int8", "validate@int8", "benchmark@int8", "trace@int8", "race", "report", "gate"}

TOLD = """
import json
from torch import nn


def network(parts):
    width = json.load(open(parts[0]["config"]))["width"]
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, width), nn.Linear(width, 10))
"""
# This script answers as a target of a fleet does.
ANSWER = """
from enginewright.core.params.all import Params
from enginewright.targets.here import answer_here

print(answer_here("t4", "abc", Params.read()).model_dump_json())
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project that was reproduced once."""
    project = Project(checkout(tmp_path_factory.mktemp("project")))
    project.make_small()
    project.run("git", "init", "--quiet")
    done = project.repro()
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.fixture
def own(project, tmp_path):
    """A copy of the reproduced project, to change."""
    return project.copy(tmp_path / "own")


def test_everything_is_made_and_the_metrics_name_every_precision(project):
    metrics = json.loads((project.root / "reports/metrics.json").read_text())
    assert {"fp32", "int8"} <= metrics.keys()
    assert metrics["int8"]["batch_02"]["p50_ms"] > 0
    assert metrics["recommended"] in (*PRECISIONS, "undecided")  # on a busy machine
    for picture in ("latency", "throughput", "tradeoff"):
        drawn = (project.root / f"reports/figures/{picture}.svg").read_text()
        assert "int8</text>" in drawn or "int8 *</text>" in drawn  # a noisy point has an asterisk
    page = (project.root / "reports/report.html").read_text()
    assert f"Ship {metrics['recommended']}" in page or "Measure again" in page
    summary = (project.root / "reports/summary.md").read_text()
    headings = ("Accuracy", "Executed precision", "Latency", "Throughput", "Where the time goes", "Memory and size")
    for heading in headings:
        assert f"\n## {heading}\n" in summary


def test_the_layers_of_every_engine_are_timed_and_told(project):
    summary = (project.root / "reports/summary.md").read_text()
    for precision in PRECISIONS:
        trace = json.loads((project.root / f"reports/trace/{precision}.json").read_text())
        engine = json.loads((project.root / f"artifacts/engines/{precision}/engine.json").read_text())
        assert [layer["name"] for layer in trace["layers"]] == [layer["name"] for layer in engine["layers"]]
        assert trace["batch"] == 2
        assert f"\n### {precision}\n" in summary
    assert "### What int8 gained and lost" in summary


def test_nothing_changed_reruns_nothing(project):
    done = project.repro()
    assert done.returncode == 0
    assert ran(done) == set()


def test_plots_are_drawn_by_dvc(project):
    done = project.run("dvc", "plots", "show", "--json")
    drawn = json.loads(done.stdout)
    assert set(drawn["data"]) == {"latency", "tradeoff"}
    assert not drawn.get("errors")
    with (project.root / "reports/plots/tradeoff.csv").open() as file:
        assert all(float(row["relative_error"]) > 0 for row in csv.DictReader(file))  # on a logarithmic scale


def test_other_calibration_samples_rerun_calibration_alone(own):
    own.set(**{"samples.calibration": 12})
    assert ran(own.repro("simplify", "reference", "calibrate")) == {"samples", "calibrate"}


def test_another_method_reruns_calibration_and_int8_whose_engines_race_and_coming_back_reruns_nothing(own):
    own.run("git", "add", "--all")
    own.run("git", *AUTHOR, "commit", "--quiet", "--message", "by what it costs")
    own.set(**{"calibration.method": "max"})
    assert ran(own.repro()) == INT8_CHAIN | {"calibrate", "rescue@int8", "search@int8"}
    raced = own.run("enginewright", "compare", "HEAD", "reports", "--race", "--json")
    assert raced.returncode in (0, 3, 4), raced.stderr  # of tiny engines on a busy machine, what it tells is chance
    figures = {(row["precision"], row["figure"]) for row in json.loads(raced.stdout)}
    assert ("fp32", "side by side, same file") in figures
    assert ("int8", "speed, all together") in figures
    assert ("int8", "side by side, same file") not in figures
    assert not any(figure.startswith("times ") for _, figure in figures), "ratios to PyTorch are not looked at"
    own.set(**{"calibration.method": "auto"})
    back = own.repro()
    assert back.returncode == 0
    # The rest comes from the run cache, which keeps neither the small files that git tracks nor stages without outputs.
    assert ran(back) <= {"report", "gate"}


def test_a_broken_threshold_is_red_at_the_end_and_stops_nothing_else(own):
    own.set(**{"precisions.fp32.thresholds.relative_error": 1e-9})
    done = own.repro()
    assert done.returncode != 0
    assert "fp32: relative error" in done.stderr
    assert "int8" not in next(line for line in done.stderr.splitlines() if line.startswith("gate: "))
    assert "**fp32 failed:** relative error" in (own.root / "reports/summary.md").read_text()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"calibration.methd": "max"}, "calibration.methd is not a parameter; did you mean 'method'?"),
        ({"benchmark.batches": [1, 64]}, "benchmark.batches: 64 lies outside build.profile.batch 1 to 4"),
        ({"runtime": "tensorrt"}, "runtime: tensorrt"),
    ],
)
def test_a_mistake_is_one_sentence_and_loses_nothing(own, change, sentence):
    reports = {file: file.read_bytes() for file in (own.root / "reports").rglob("*.*") if file.is_file()}
    own.set(**change)
    done = own.repro()
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert {file: file.read_bytes() for file in reports} == reports


def test_the_whole_pipeline_runs_with_tensorrt_and_a_precision_that_the_gpu_lacks_stops_no_other(own, tmp_path):
    """On a simulated GPU of the generation before bf16: see tests/simulated."""
    own.environment |= simulated.environment("11.4", XDG_CACHE_HOME=str(tmp_path), SIMULATED_CAPABILITY="7.5")
    bf16 = {"from": "simplified", "keep": KEPT, "thresholds": LOOSE}
    own.set(**{"precisions.bf16": bf16, "precisions.int8.rescue": "none"})  # ModelOpt would quantize for each attempt
    done = own.repro()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tensorrt 11.4." in done.stdout
    # The graphs before it serve any machine.
    stages = ("convert", "build", "validate", "benchmark", "trace")
    of_int8 = {"calibrate", "rescue@int8", "search@int8"}
    assert ran(done) <= each(*stages) | of_int8 | {f"{stage}@bf16" for stage in stages} | {"race", "report", "gate"}
    metrics = json.loads((own.root / "reports/metrics.json").read_text())
    for precision in PRECISIONS:
        assert metrics[precision]["executed_as_asked_%"] > 90
        assert metrics[precision]["peak_GPU_MB"] > 0
        assert (own.root / f"reports/benchmark/{precision}/gpu.csv").exists()
        assert "trtexec" in (own.root / f"artifacts/engines/{precision}/reproduce.sh").read_text()
    summary = (own.root / "reports/summary.md").read_text()
    assert "- **bf16 was not built:** compute capability 7.5 does not have bf16; TensorRT cannot build" in summary
    assert "bf16" not in metrics
    assert "Measured on Simulated GPU (compute capability 7.5, driver 590.10, CUDA 13.0)" in summary
    assert "were replayed as one CUDA graph" in summary
    assert list((tmp_path / "enginewright/timing").glob("Simulated-GPU_*.timings"))
    answered = own.run("python", "-c", ANSWER)
    assert answered.returncode == 0, answered.stderr
    assert re.findall(r"(?m)^Running stage '(.+)'", answered.stderr) == ["machine/dvc.yaml:machine"], "all has run"
    answer = Answer.parse(answered.stdout.encode(), "the answer")
    text = as_text("net", Fleet.model_construct(targets=()), [answer])
    assert re.search("bf16 on t4 +not built", text)
    assert "bf16 on t4, not built: compute capability 7.5 does not have bf16" in text


def test_engines_for_rtx_gpus_are_built_here_and_kept_for_one(own):
    own.set(runtime="tensorrt_rtx")
    built = own.repro("build")
    assert built.returncode == 0, built.stdout + built.stderr
    assert ran(built) >= each("build")
    plans = [own.root / f"artifacts/engines/{precision}/engine.plan" for precision in PRECISIONS]
    before = [plan.read_bytes() for plan in plans]
    there = own.repro()
    assert there.returncode != 0
    assert "needs a GPU of compute capability 8.6, 8.9 or 12.0, and this machine shows none" in there.stderr
    assert "Traceback" not in there.stderr
    assert [plan.read_bytes() for plan in plans] == before


def test_a_broken_checkpoint_is_named(own):
    (own.root / "data/weights/broken.pt").write_bytes(b"not a checkpoint")
    own.set(**{"weights.source": "data/weights/broken.pt"})
    done = own.repro()
    (own.root / "data/weights/broken.pt").unlink()
    assert done.returncode != 0
    assert "weights: data/weights/broken.pt" in done.stderr
    assert "Traceback" not in done.stderr


def test_new_bytes_of_a_file_that_the_factory_reads_make_the_weights_anew(tmp_path):
    project = Project(checkout(tmp_path / "told"))
    project.make_small()
    project.run("git", "init", "--quiet")
    (project.root / "told_net.py").write_text(TOLD)
    arguments = {"parts": [{"config": "net.json"}]}
    project.set(**{"model.source": "told_net:network", "model.arguments": arguments, "weights.source": "given"})
    again = []
    for width in (4, 4, 8):
        (project.root / "net.json").write_text(json.dumps({"width": width}))
        done = project.repro("weights")
        assert done.returncode == 0, done.stdout + done.stderr
        again.append(ran(done))
    assert again == [{"samples", "weights"}, set(), {"weights"}]


# A remote between machines: a folder, and S3 as a server of the test speaks it.


@pytest.fixture(scope="module")
def s3():
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def remotes(s3, tmp_path):
    """The options of each remote."""
    client = boto3.client(
        "s3", endpoint_url=s3, region_name=KEYS["AWS_DEFAULT_REGION"], aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.create_bucket(Bucket="engines")
    return {
        "bucket": {"url": "s3://engines/store", "endpointurl": s3},
        "folder": {"url": str(tmp_path / "store")},
    }


def test_a_clone_takes_what_any_machine_can_use_from_a_remote_and_builds_its_own_engines(own, remotes, tmp_path):
    own.environment = own.environment | KEYS
    for remote, options in remotes.items():
        for name, value in options.items():
            own.run("dvc", "config", f"remote.{remote}.{name}", value)
    own.run("git", "add", "--all")
    assert own.run("git", *AUTHOR, "commit", "--quiet", "--message", "first").returncode == 0
    # From S3 the files of some stages: for each output of another one DVC makes a new client, in 0.2 seconds.
    for remote, stages in {"bucket": ("export", "calibrate"), "folder": ()}.items():
        pushed = own.run("dvc", "push", "--remote", remote)
        assert pushed.returncode == 0, pushed.stderr
        own.run("git", "clone", "--quiet", str(own.root), str(tmp_path / remote))
        clone = Project(tmp_path / remote)
        clone.environment = clone.environment | KEYS
        pulled = clone.run("dvc", "pull", "--remote", remote, *stages)
        assert pulled.returncode == 0, pulled.stderr
        assert (clone.root / "artifacts/exported/model.onnx").exists()

    assert ran(clone.repro()) == set(), "the machine is the same"
    clone.set(runtime="onnxruntime")  # as on a machine of another kind, which takes int8 in another form
    built = clone.repro("build@fp32", "build@int8", "reference")
    assert built.returncode == 0, built.stdout + built.stderr
    assert ran(built) == each("convert", "build") | {"calibrate", "rescue@int8", "search@int8"}
    for precision in ("fp32", "int8"):
        record = json.loads((clone.root / f"artifacts/engines/{precision}/engine.json").read_text())
        assert record["target"]["runtime"] == "onnxruntime"


def test_a_remote_without_credentials_is_one_sentence_and_loses_nothing(own, s3, tmp_path):
    own.environment = {name: value for name, value in own.environment.items() if not name.startswith("AWS_")}
    own.environment |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    for name, value in {"url": "s3://engines/other", "endpointurl": s3}.items():
        own.run("dvc", "config", f"remote.store.{name}", value)
    pushed = own.run("dvc", "push", "--remote", "store")
    assert pushed.returncode != 0
    assert "credentials" in pushed.stderr
    assert "Traceback" not in pushed.stderr
    assert ran(own.repro()) == set()
