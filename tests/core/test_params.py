import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML
from support.params import REMOVED, VALID, written
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.params.all import Params
from enginewright.core.params.model import ModelParams
from enginewright.core.params.precisions import DEFAULTS, Thresholds, as_executed
from enginewright.model.checkpoint import Weights

MIXED = {"floating": "bf16", "seconds": 1, "traces": None}
BEST = {
    "from": "mixed",
    "keep": {"op_types": [], "nodes": []},
    "thresholds": {"cosine": 0.99, "relative_error": 0.1, "agreement": 0.9, "metric_drop": 0.1},
}


def error_of(path):
    with pytest.raises(EnginewrightError) as caught:
        Params.read(path)
    return str(caught.value)


def test_the_repositorys_own_parameters_load():
    params = Params.read(ROOT / "params.yaml")
    assert list(params.precisions) == ["fp32", "fp16", "bf16", "int8"]
    assert params.precisions["int8"].made_from == "searched"


IN_GRAPH = {"task": "detection", "model.boxes.nms": "graph", "weights.source": "data/weights/x.pt"}


def of_texts(changes):
    return {
        "samples.preprocessing": None,
        "samples.text": {"tokenizer": "t.json", "longest": 64},
        "build.profile.axes": {"sequence": {"min": 8, "opt": 32, "max": 64}},
        "weights.source": "data/weights/x.pt",
    } | changes


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # Mistyped names, at every depth.
        ({"modle": {"source": "resnet18"}}, "modle is not a parameter; did you mean 'model'?"),
        ({"calibration.methd": "max"}, "calibration.methd is not a parameter; did you mean 'method'?"),
        ({"weights.training.epoch": 4}, "weights.training.epoch is not a parameter; did you mean 'epochs'?"),
        ({"samples.preprocessing.croop": 4}, "samples.preprocessing.croop is not a parameter; did you mean 'crop'?"),
        ({"build.profile.batch.maxx": 4}, "build.profile.batch.maxx is not a parameter; did you mean 'max'?"),
        ({"precisions.int8.form": "calibrated"}, "precisions.int8.form is not a parameter; did you mean 'from'?"),
        (
            {"precisions.int8.thresholds.cosin": 0.9},
            "precisions.int8.thresholds.cosin is not a parameter; did you mean 'cosine'?",
        ),
        ({"precisions.fp16.keep.node": []}, "precisions.fp16.keep.node is not a parameter; did you mean 'nodes'?"),
        ({"export.zzz": 1}, "export.zzz is not a parameter; known here: opset"),
        (
            {"task": "segmentaton"},
            "task: there is no task 'segmentaton'; did you mean 'segmentation'? A task of yo",
        ),
        ({"task": "segmentation"}, "weights.source: train teaches classifiers alone, and task is segmentation; give"),
        (
            {"model.source": "nets.Net"},
            "model.source: 'nets.Net' is neither a torchvision model, nor package.module:factory, "
            "nor data/models/FILE.onnx",
        ),
        (
            {"model.source": "nets:"},
            "model.source: 'nets:' is neither a torchvision model, nor package.module:factory, "
            "nor data/models/FILE.onnx",
        ),
        (
            {"model.source": ":Net"},
            "model.source: ':Net' is neither a torchvision model, nor package.module:factory, "
            "nor data/models/FILE.onnx",
        ),
        (
            {"model.source": ".nets:Net"},
            "model.source: '.nets:Net' is neither a torchvision model, nor package.module:factory, "
            "nor data/models/FILE.onnx",
        ),
        (
            {"model.source": "nets.py:Net"},
            "model.source: 'nets.py:Net' is neither a torchvision model, nor package.module:factory, "
            "nor data/models/FILE.onnx",
        ),
        (
            {"model.source": "code/nets:Net"},
            "model.source: 'code/nets:Net' is neither a torchvision model, nor package.module:factory, "
            "nor data/models/FILE.onnx",
        ),
        # Precisions.
        ({"precisions.in8": {}}, "precisions.in8: input should be 'fp32', 'fp16', 'bf16', 'int8', 'fp8', "),
        (
            {"precisions.int8; touch pwned": {}},
            "precisions.int8; touch pwned: input should be 'fp32', 'fp16', ",
        ),
        ({"precisions.tf32": {}}, "precisions.tf32: input should be 'fp32', 'fp16', 'bf16', 'int8', 'fp8', "),
        ({"precisions": {}}, "precisions is empty"),
        ({"precisions.int8.from": "simplified"}, "precisions.int8.from: int8 is made from 'searched' or 'given' or '"),
        ({"precisions.int8.from": "calibrated"}, "search.int8: set precisions.int8.from to searched, or remove it"),
        ({"mix.best": MIXED}, "mix.best: add precisions.best with from: mixed, or remove it from mix"),
        (
            {"precisions.best": BEST, "mix.best": MIXED, "precisions.bf16": REMOVED},
            "mix.best: it is mixed of int8 and bf16: add precisions.bf16",
        ),
        (
            {"precisions.best": BEST | {"keep": {"op_types": ["Conv"], "nodes": []}}, "mix.best": MIXED},
            "precisions.best.keep: best keeps what the precisions that it is mixed of keep",
        ),
        (
            {"precisions.int8.from": "given", "search": {}, "precisions.int8.keep.nodes": ["conv1"]},
            "precisions.int8.keep: what `from: given` has in high precision is as the model has it",
        ),
        (
            {"precisions.int8.from": "given", "search": {}, "precisions.best": BEST, "mix.best": MIXED},
            "mix.best: it is mixed of an int8 that is searched or calibrated, not 'given'",
        ),
        ({"precisions.fp16.from": "calibrated"}, "precisions.fp16.from: fp16 is made from 'simplified'"),
        (
            {"precisions.int8.must_pay": {"over": "fp8", "times": 1.1}},
            "precisions.int8.must_pay.over: fp8 is not another precision that is made",
        ),
        (
            {"precisions.int8.must_pay": {"over": "int8", "times": 1.1}},
            "precisions.int8.must_pay.over: int8 is not another precision that is made",
        ),
        (
            {"precisions.int8.from": "exported"},
            "precisions.int8.from: input should be 'simplified', 'calibrated', 'searched', 'mixed' or 'given'",
        ),
        (
            {"precisions.int8.rescue": ["equalise"]},
            "precisions.int8.rescue: there is no rescue 'equalise': it is auto, none, or a list of some of eq",
        ),
        (
            {"precisions.int8.rescue": "round"},
            "precisions.int8.rescue: round is no list of different rescues, such as [eq",
        ),
        (
            {"precisions.int8.rescue": ["round"], "precisions.int8.from": "calibrated", "search.int8": REMOVED},
            "precisions.int8.rescue: a precision is rescued only where its from is searched, not 'calibrated'",
        ),
        (
            {"precisions.int8.rescue": ["equalize"], "calibration.file": "data/calibration/given.cache"},
            "precisions.int8.rescue: equalize measures ranges anew, which calibration.file gives: remove one",
        ),
        # Options of the runtimes.
        (
            {"precisions.fp16.keep.rest": "auto"},
            "precisions.fp16.keep.rest: only int8, fp8, w8, int4, mxfp8, nvfp4 have a choice; fp16 keeps fp32",
        ),
        (
            {"precisions.int8.keep.rest": "bf16"},
            "precisions.int8.keep.rest: input should be 'auto', 'fp32' or 'fp16', got",
        ),
        ({"runtime": "tensorrt-rtx"}, "runtime: input should be 'auto', "),
        (
            {"build.tensorrt.compute_capabilities": ["9.0"]},
            "build.tensorrt.compute_capabilities.0: input should be '7.5', ",
        ),
        ({"build.tensorrt.compute_capabilities": []}, "build.tensorrt.compute_capabilities is empty"),
        ({"build.tensorrt.optimization_level": 6}, "build.tensorrt.optimization_level: input should be less than"),
        ({"build.tensorrt.workspace_mb": 0}, "build.tensorrt.workspace_mb: input should be greater than"),
        ({"build.tensorrt.workspce_mb": 1}, "build.tensorrt.workspce_mb is not a parameter; did you mean"),
        ({"build.tensorrt.hardware_compatibility": "all"}, "build.tensorrt.hardware_compatibility: input should be"),
        ({"build.tf32": "maybe"}, "build.tf32: input should be a valid boolean"),
        ({"inference.thread": 1}, "inference.thread is not a parameter; did you mean 'threads'?"),
        ({"build.tensorrt.weights": "outside"}, "build.tensorrt.weights: input should be 'inside' or 'stripped'"),
        ({"inference.weights_on_gpu_mb": "most"}, "inference.weights_on_gpu_mb: most is none of auto, all"),
        ({"inference.weights_on_gpu_mb": -1}, "inference.weights_on_gpu_mb: -1 is none of auto, all"),
        # Time-outs.
        ({"timeouts.biuld": 60}, "timeouts.biuld: input should be 'samples', "),
        ({"timeouts.build": 0}, "timeouts.build: input should be greater than 0, got 0"),
        ({"timeouts.build": 1e30}, "timeouts.build: input should be less than or equal to 31536000"),
        ({"timeouts.validate": "1 h"}, "timeouts.validate: input should be a valid number"),
        # Batch sizes.
        ({"benchmark.batches": [1, 32, 64]}, "benchmark.batches: 32, 64 lies outside build.profile.batch 1 to 16"),
        ({"build.profile.batch.min": 4}, "benchmark.batches: 1 lies outside build.profile.batch 4 to 16"),
        ({"build.profile.batch.opt": 32}, "build.profile.batch: needs min <= opt <= max, got 1, 32, 16"),
        ({"build.profile.batch.min": 0}, "build.profile.batch.min: input should be greater than or equal to 1, got 0"),
        ({"benchmark.batches": []}, "benchmark.batches is empty"),
        # Other axes.
        (
            {"build.profile.axes": {"width": {"min": 1, "opt": 2, "max": 3}}},
            "build.profile.axes: width has a line of its own, build.profile.width: give its range there",
        ),
        ({"build.profile.axes": {"a-b": {"min": 1, "opt": 2, "max": 3}}}, "build.profile.axes: 'a-b' must be made of"),
        ({"build.profile.axes": {"length": {"min": 9, "opt": 2, "max": 3}}}, "build.profile.axes.length: needs min <="),
        (
            {"build.profile.axes": {"length": {"min": 1, "opt": 2, "max": 3, "inputs": {"ids": 0}}}},
            "build.profile.axes.length.inputs.ids: input should be greater than or equal to 1, got 0",
        ),
        # Texts.
        ({"samples.text": {"tokenizer": "t.json"}}, "samples: preprocessing: is for images, and samples.text for"),
        (
            of_texts({"build.profile.axes": {}}),
            "build.profile.axes: texts are 8 to 64 tokens long: add sequence: {min: 8",
        ),
        (
            of_texts({"samples.text.longest": 65}),
            "build.profile.axes.sequence: is 8 to 64, and texts are 8 to 65",
        ),
        (
            of_texts({"samples.text.inputs": ["x"]}),
            "samples.text: inputs: 'x' is none of the usual names, which",
        ),
        (of_texts({"samples.text.inputs": ["mask"]}), "samples.text: inputs: one takes the ids, and at most one"),
        (
            of_texts({"build.profile.axes.more": {"min": 1, "opt": 2, "max": 3}}),
            "build.profile.axes: texts have one axis beside the batch, and here are ",
        ),
        # Several profiles.
        (
            {"build.profiles": [{"batch": {"min": 4, "opt": 8, "max": 32}}]},
            "build.profiles.0.batch: 4 to 32 lies outside build.profile, where it is 1 to 16",
        ),
        (
            {"build.profiles": [{"bach": {"min": 4, "opt": 8, "max": 16}}]},
            "build.profiles.0: build.profile has no bach; did you mean 'batch'?",
        ),
        (
            {"build.profiles": [{"batch": {"min": 1, "opt": size, "max": 4}} for size in (1, 2, 1)]},
            "build.profiles.2: another profile has the same opt, by which calls choose: give each an opt of its own",
        ),
        ({"build.profiles": [{"batch": {"min": 2, "opt": 1, "max": 4}}]}, "build.profiles.0.batch: needs min <= opt"),
        # Libraries.
        ({"model.source": "transformers:data/models/x"}, "weights.source: transformers:data/models/x has its weights"),
        (
            {"model.source": "timm:resnet18", "weights.source": "given"},
            "weights.source: timm's models bring no weights; take pretrained, or give a checkpoint",
        ),
        ({"benchmark.batches": [1, 4, 1]}, "benchmark.batches: lists a value twice: 1, 4, 1"),
        ({"benchmark.batches": [0]}, "benchmark.batches.0: input should be greater than or equal to 1, got 0"),
        ({"benchmark.baselines": ["eager", "eager"]}, "benchmark.baselines: lists a value twice: eager, eager"),
        ({"benchmark.baselines": ["fast"]}, "benchmark.baselines.0: 'fast' is no baseline: write onnxruntime or "),
        ({"benchmark.baselines": ["compile+eager"]}, "benchmark.baselines.0: 'compile+eager' is no baseline: "),
        ({"benchmark.baselines": ["onnxruntime+fp16"]}, "benchmark.baselines.0: 'onnxruntime+fp16' is no baseline: "),
        ({"benchmark.baselines": ["eager+"]}, "benchmark.baselines.0: 'eager+' is no baseline: "),
        ({"benchmark.requests": [0]}, "benchmark.requests.0: input should be greater than or equal to 1, got 0"),
        (
            {"build.tensorrt.plugins": ["data/plugins/a/x.so", "data/plugins/b/x.so"]},
            "build.tensorrt.plugins: lists a value twice: x.so, x.so",
        ),
        ({"benchmark.requests": [2, 2]}, "benchmark.requests: lists a value twice: 2, 2"),
        # Values of the wrong type, or beyond reason.
        ({"weights.training.epochs": "many"}, "weights.training.epochs: input should be a valid integer"),
        ({"weights.training.epochs": 2.5}, "weights.training.epochs: input should be a valid integer, got 2.5"),
        ({"samples.calibration": 0}, "samples.calibration: input should be greater than or equal to 1, got 0"),
        ({"samples.training": 0}, "samples.training: weights.source is 'train', which needs training samples; got 0"),
        ({"samples.preprocessing.crop": 65}, "samples.preprocessing: crop is 65 high, which is larger than resize, 64"),
        (
            {"samples.preprocessing.crop": [64, 65]},
            "samples.preprocessing: crop is 65 wide, which is larger than resize, 64",
        ),
        (
            {"samples.preprocessing.crop": [1, 2, 3]},
            "samples.preprocessing.crop: write one number from 1 to 65500, or [height, width], not [1, 2, 3]",
        ),
        (
            {"samples.preprocessing.crop": 0},
            "samples.preprocessing.crop: write one number from 1 to 65500, or [height, width], not 0",
        ),
        (
            {"samples.preprocessing.crop": [8, 0]},
            "samples.preprocessing.crop.1: input should be greater than or equal to 1, got 0",
        ),
        (
            {"samples.preprocessing.resize": [64, 80]},
            "samples.preprocessing: resize: the shorter side is one number; [height, width] is for stretch and pad",
        ),
        (
            {"samples.preprocessing.mean": [0.5, 0.5]},
            "samples.preprocessing: mean has 2 values, and rgb has 3 channels",
        ),
        ({"samples.preprocessing.color": "grey"}, "samples.preprocessing: mean has 3 values, and grey has 1 channels"),
        ({"samples.preprocessing.divide_by": 0}, "samples.preprocessing.divide_by: input should be greater than 0"),
        (
            {"samples.preprocessing.layout": "nhwc"},
            "weights.source: train learns from images of samples.preprocessing.layout nchw; give weights",
        ),
        (
            {"samples.class_names": [0, 1]},
            "samples.class_names: write null, a file, or a list of names (numbers in quotes), not [0, 1]",
        ),
        ({"samples.preprocessing.std": [1, 0, 1]}, "samples.preprocessing: every std must be above 0"),
        (
            {"samples.preprocessing.std": [1, float("nan"), 1]},
            "samples.preprocessing.std.1: input should be a finite number, got nan",
        ),
        ({"calibration.method": "entrpy"}, "calibration.method: input should be 'auto', 'max', "),
        ({"calibration.bins": 128}, "calibration.bins: input should be greater than or equal to 2048, got 128"),
        ({"precisions.int8.thresholds.cosine": 1.5}, "precisions.int8.thresholds.cosine: input should be less than"),
        ({"precisions.int8.keep.op_types": "Conv"}, "precisions.int8.keep.op_types: input should be a list"),
        ({"samples": 3}, "samples: input should be a section of parameters, got 3"),
        ({"precisions": [1]}, "precisions: input should be a section of parameters, got [1]"),
        *(
            (
                {"export.opset": opset},
                "export.opset: input should be ",
            )
            for opset in (11, 25, 20.5, "abc", True, None)
        ),
        *(
            (
                {"model.source": f"timm:{name}"},
                f"model.source: 'timm:{name}' is a name of the hub, from which nothing is",
            )
            for name in ("hf-hub:org/name", "hf_hub:org/name", "org/name")
        ),
        ({"runtime": "tensort"}, "runtime: input should be 'auto', "),
        ({"model": None}, "model: "),
        # Boxes that are chosen in the graph.
        *(
            ({**IN_GRAPH, **more}, f"model.boxes{place}: {told}")
            for more, place, told in (
                (
                    {"task": "segmentation"},
                    ".nms",
                    "graph is for task: detection, and task is segmentation: set outside",
                ),
                ({"runtime": "tensorrt_rtx"}, ".nms", "TensorRT for RTX reads NonMaxSuppression and has no kernel"),
                ({"build.profile.height": {"min": 32, "opt": 64, "max": 64}}, ".nms", "graph needs the same number of"),
                ({"model.boxes.form": "end_to_end"}, "", "nms: graph chooses boxes, and those of the form end_to_end"),
                ({"model.boxes.nms": "inside"}, ".nms", "input should be 'outside' or 'graph', got 'inside'"),
            )
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_parameter_is_one_readable_line_that_names_it(tmp_path, changes, wanted):
    path = written(tmp_path, changes)
    message = error_of(path)
    assert message.startswith(f"{path}: ")
    assert wanted in message
    assert "\n" not in message
    assert "pydantic" not in message


@pytest.mark.parametrize(
    "changes",
    [
        {"build.tensorrt.compute_capabilities": ["9.0"]},
        {"benchmark.baselines": ["fast"]},
        {"benchmark.requests": [0]},
        {"precisions.int3": {}},
        {"precisions.int3": {"from": "calibrated"}},
        {"precisions.int8.keep.rest": "bf16"},
        {"samples.preprocessing.crop": 0},
        {"samples.preprocessing.resize": 65501},
    ],
    ids=str,
)
def test_a_mistake_is_reported_once(tmp_path, changes):
    (place,) = changes
    message = error_of(written(tmp_path, changes))
    assert message.count(place) == 1
    assert "; " not in message.replace("; known here: ", "")


@pytest.mark.parametrize("opset", [18, 24])
def test_the_first_and_the_last_opset_are_taken(tmp_path, opset):
    assert Params.read(written(tmp_path, {"export.opset": opset})).export.opset == opset


def test_every_wrong_parameter_is_named_at_once(tmp_path):
    message = error_of(written(tmp_path, {"calibration.methd": 1, "export.opset": 11, "runtim": "auto"}))
    assert all(name in message for name in ("calibration.methd", "export.opset", "runtim"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("precisions:\n  int8: {}\n  fp16: {}\n  int8: {}\n", 'line 4: found duplicate key "int8"'),
        ("samples: [1, 2\n", "is not valid YAML: line 2: "),
        ("samples:\n\tseed: 0\n", "is not valid YAML: line 2: "),
        ("name: *nothing\n", "is not valid YAML: line 1: found undefined alias 'nothing'"),
        ("name: \x00\n", "is not valid YAML: unacceptable character"),
        ("", "the file: input should be a section of parameters"),
        ("- a\n- b\n", "the file: input should be a section of parameters"),
        ("1: 2\n", "1: keys should be strings"),
    ],
)
def test_a_file_that_holds_no_parameters_is_one_readable_line(tmp_path, text, wanted):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    message = error_of(path)
    assert message.startswith(str(path))
    assert wanted in message
    assert "\n" not in message


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "params.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not valid YAML" in error_of(tmp_path / "params.yaml")


def test_a_missing_file_says_where_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of(Path("params.yaml")) == f"params.yaml is not in {tmp_path}: run from the root of the project"


@pytest.mark.parametrize("place", [*VALID, "build.tensorrt", "samples.preprocessing.crop", "precisions.int8.from"])
def test_what_is_left_out_has_its_default(tmp_path, place):
    assert Params.read(written(tmp_path, {place: REMOVED})) == Params()


def test_each_part_of_params_yaml_is_a_valid_one(tmp_path):
    whole = YAML(typ="safe").load(ROOT / "params.yaml")
    for name, section in whole.items():
        parts = [
            {name: section},
            *({name: {key: section[key]}} for key in (section if isinstance(section, dict) else ())),
        ]
        for part in parts:
            YAML(typ="safe").dump(part, tmp_path / "params.yaml")
            Params.read(tmp_path / "params.yaml")


@pytest.mark.parametrize("given", ["fp8:", "fp8: {}", "fp8: {keep: {nodes: []}, thresholds: {cosine: 0.99}}"])
def test_a_precision_that_is_only_named_has_its_defaults(tmp_path, given):
    (tmp_path / "params.yaml").write_text(f"precisions:\n  {given}\n")
    params = Params.read(tmp_path / "params.yaml")
    assert list(params.precisions) == ["fp8"]
    assert not params.search
    fp8 = params.precisions["fp8"]
    assert (fp8.made_from, fp8.keep.rest, fp8.thresholds.relative_error) == ("calibrated", "auto", 0.2)


@pytest.mark.parametrize("text", ["{}", "precisions:", "task: classification"])
def test_without_precisions_there_are_four(tmp_path, text):
    (tmp_path / "params.yaml").write_text(text)
    params = Params.read(tmp_path / "params.yaml")
    assert params == Params()
    assert list(params.precisions) == ["fp32", "fp16", "bf16", "int8"]
    assert (params.search["int8"].seconds, params.mix) == (600, {})
    assert params.build.profile.batch.max == 16


def test_float32_that_runs_as_tf32_is_held_to_what_11_bits_leave_unless_params_yaml_says_more():
    usual, fp16 = (Thresholds(**DEFAULTS[name]["thresholds"]) for name in ("fp32", "fp16"))
    assert as_executed(usual, {"fp32"}) == usual
    assert as_executed(usual, {"fp32", "tf32"}) == fp16
    own = usual.model_copy(update={"relative_error": 2e-3})
    assert as_executed(own, {"tf32"}) == fp16.model_copy(update={"relative_error": 2e-3})


def test_every_precision_has_defaults(tmp_path):
    (tmp_path / "params.yaml").write_text(f"precisions: {{{', '.join(PRECISIONS)}}}\n")
    params = Params.read(tmp_path / "params.yaml")
    made_from = {name: each.made_from for name, each in params.precisions.items()}
    assert made_from == dict.fromkeys(("fp32", "fp16", "bf16", "w8", "int4", "mxfp8"), "simplified") | {
        "int8": "searched", "fp8": "calibrated", "nvfp4": "calibrated", "best": "mixed"
    }  # fmt: skip
    assert list(params.search) == ["int8"]
    assert params.mix["best"].floating == "fp32"


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("nan"),
        [1, {"deep": float("inf")}],
        {0: "cat", 1: "dog"},
        datetime.date(2024, 1, 1),
        {"a"},
        b"bytes",
    ],
    ids=repr,
)
def test_arguments_that_json_would_change_are_refused(value):
    """Each later stage makes the model anew, from arguments that were recorded in JSON."""
    with pytest.raises(ValidationError, match=r"cap is .*, which no record keeps: write text, finite numbers"):
        ModelParams(source="net:make", arguments={"width": 4, "cap": value})


def test_arguments_that_json_keeps_are_taken_as_they_are(tmp_path):
    arguments = {"width": 4, "rate": 0.1, "names": {"0": "cat"}, "sizes": [1, [2, None]], "deep": True, "big": 10**30}
    assert ModelParams(source="net:make", arguments=arguments).arguments == arguments
    record = Weights(model="net:make", arguments=arguments, source="given", classes=None, sha256="0" * 64)
    record.write(tmp_path / "weights.json")
    assert Weights.read(tmp_path / "weights.json").arguments == arguments


def test_the_names_that_thresholds_had_for_classifiers_still_work_and_the_task_need_not_be_named(tmp_path):
    now = Params.read(written(tmp_path, {}))
    limits = now.precisions["int8"].thresholds
    old = {"cosine": limits.cosine, "relative_error": limits.relative_error}
    old |= {"top1_agreement": limits.agreement, "accuracy_drop": limits.metric_drop}
    assert Params.read(written(tmp_path, {"task": REMOVED, "precisions.int8.thresholds": old})) == now
    both = written(tmp_path, {"precisions.int8.thresholds.accuracy_drop": 0.5})
    assert error_of(both).endswith("accuracy_drop is not a parameter; did you mean 'metric_drop'?")
