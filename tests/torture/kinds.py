"""The files that are read: an example of each, how it is changed, and the code that reads it."""

import io
import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support.paths import ROOT
from torture import mutations

SIZE, CLASSES, COUNT = 8, 3, 4
IMAGES, TEXTS, MODELS = Path("data/images"), Path("data/texts"), Path("data/models")
Change = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Kind:
    """A file of the project, `path`, with `examples` of its content; `read` is called in the project's folder."""

    name: str
    path: str
    examples: tuple[bytes, ...]
    changes: tuple[Change, ...]
    read: Callable[[], object]


def lay_out(root: Path) -> None:
    """Write the files that surround the one that is changed."""
    rng = np.random.default_rng(3)
    for folder in (
        IMAGES / "yolo/images",
        IMAGES / "yolo/labels",
        IMAGES / "plain",
        IMAGES / "masked/images",
        TEXTS,
        MODELS,
    ):
        (root / folder).mkdir(parents=True)
    for folder in ("yolo/images", "plain", "masked/images"):
        for number in range(COUNT):
            Image.fromarray(rng.integers(0, 255, (9, 11, 3), np.uint8)).save(root / IMAGES / folder / f"{number}.png")
    (root / IMAGES / "masked/masks").mkdir()
    for number in range(COUNT):
        Image.fromarray(np.full((9, 11), number, np.uint8)).save(root / IMAGES / f"masked/masks/{number}.png")
        (root / IMAGES / f"yolo/labels/{number}.txt").write_text("1 0.5 0.5 0.2 0.3\n0 0.25 0.25 0.1 0.1\n")
    (root / IMAGES / "yolo/classes.txt").write_text("cat\ndog\n")
    shutil.copyfile(ROOT / "params.yaml", root / "params.yaml")
    from support.texts import write_tokenizer

    write_tokenizer(root / TEXTS / "tokenizer.json")
    (root / TEXTS / "texts.txt").write_text("word1 word2\nword3\nword4 word5\n")


def _samples(source: Path, task: str = "classification", **changes: object) -> Callable[[], object]:
    def read() -> None:
        from enginewright.core.params.samples import Preprocessing, SamplesParams
        from enginewright.data.sample_set import SampleSet
        from enginewright.data.sources import open_source
        from enginewright.data.splits import write_split
        from enginewright.tasks.choose import known_of

        how = Preprocessing(resize=SIZE, crop=SIZE, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
        given = {"seed": 0, "validation": 1, "training": 0, "calibration": 1, "preprocessing": how} | changes
        params = SamplesParams(source=str(source), **given)
        found = open_source(params, IMAGES, known_of(task), TEXTS)
        write_split(found, range(min(len(found), 50)), params, Path("artifacts/samples"), task)
        samples = SampleSet.open(Path("artifacts/samples"))
        samples.cycled(2)

    return read


def _params() -> object:
    from enginewright.core.params.all import Params

    return Params.read()


def _recipe() -> None:
    from enginewright.core.params.all import apply_recipe

    apply_recipe(Path("recipe.yaml"))


def _cache() -> object:
    from enginewright.precision.calibration.cache import read_cache, write_cache

    return write_cache(read_cache(Path("data/calibration.cache")), Path("artifacts/calibration.cache"))


def _checkpoint() -> None:
    from enginewright.model.checkpoint import apply_weights, read_checkpoint

    path = Path("data/weights/model.pt")
    apply_weights(_network(), read_checkpoint(path), path)


def _network() -> "torch.nn.Module":  # noqa: F821
    from torch import nn

    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _checkpoints() -> tuple[bytes, ...]:
    import torch

    found = []
    for legacy in (False, True):
        packed = io.BytesIO()
        torch.save(_network().state_dict(), packed, _use_new_zipfile_serialization=not legacy)
        found.append(packed.getvalue())
    return tuple(found)


def _record(path: str, room: str, name: str) -> Callable[[], object]:
    def read() -> object:
        from importlib import import_module

        return getattr(import_module(f"enginewright.{room}"), name).read(Path(path))

    return read


def _history() -> None:
    from enginewright.measure.history import _hashes_of_good_run, read_history

    for history in read_history(Path("history")):
        history.nights()
        history.good()
        _hashes_of_good_run(history.folder / "good.json")


def _lock() -> None:
    from enginewright.measure.history import parse_hashes
    from enginewright.pipeline.recovery import mend_after_a_kill

    mend_after_a_kill(Path())
    parse_hashes(Path("dvc.lock").read_bytes(), "dvc.lock") if Path("dvc.lock").exists() else None


def _journal() -> None:
    from enginewright.precision.search import Journal

    Journal(Path("journal.jsonl")).answer(["a question"], lambda: 1.5)


def _graph() -> None:
    """Do what the stages weights, export and simplify do with a file of the user."""
    from enginewright.core.params.build import Profile, Range
    from enginewright.core.text import in_one_line
    from enginewright.graph.as_written import open_as_written, run_graph
    from enginewright.graph.onnx_file import load_graph, save_graph
    from enginewright.graph.passes import rewrite_graph
    from enginewright.graph.read_interface import interface_of
    from enginewright.graph.simplify import fold_constants, simplify_graph
    from enginewright.model.export import open_exported
    from enginewright.model.source_model import GIVEN_GRAPH, _run_or_explain, adopt_graph, open_source_model

    weights, feeds = Path("artifacts/weights"), {"input": np.ones((2, 3, SIZE, SIZE), np.float32)}
    weights.mkdir(parents=True)
    save_graph(load_graph(MODELS / "model.onnx"), weights / GIVEN_GRAPH)
    source = open_source_model(weights)
    graph = adopt_graph(load_graph(weights / GIVEN_GRAPH), feeds, {"input": {0: "batch"}}, "the model")
    interface_of(graph, Profile(batch=Range(min=1, opt=2, max=4)), "the model")
    source(feeds)
    exported = Path("artifacts/exported.onnx")
    save_graph(graph, exported)
    _run_or_explain(lambda each: run_graph(open_exported(exported, "the model"), each), in_one_line, feeds)
    made = rewrite_graph(fold_constants(simplify_graph(load_graph(exported))))
    run_graph(open_as_written(made), feeds)


def graph() -> onnx.ModelProto:
    rng = np.random.default_rng(7)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["conv"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"], "relu1"),
        helper.make_node("Constant", [], ["shape"], "constant", value=numpy_helper.from_array(np.array([0, -1]))),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"], "pool"),
        helper.make_node("Reshape", ["pooled", "shape"], ["features"], "reshape"),
        helper.make_node("Gemm", ["features", "w3", "b3"], ["logits"], "classifier", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])]
    constants = [weights("w1", 4, 3, 3, 3), weights("b1", 4), weights("w3", CLASSES, 4), weights("b3", CLASSES)]
    made = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def graph_with_data_apart(location: str = "model.onnx.data") -> bytes:
    model = graph()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(4 * 4 * 27)}.items():
        tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


def _engine(right_hash: bool) -> Callable[[], object]:
    """Open an engine whose file was changed; with the right hash, as one who means harm would write it."""

    def read() -> None:
        from enginewright.core.files import sha256
        from enginewright.core.params.build import InferenceParams
        from enginewright.engine.engine import open_engine
        from enginewright.engine.machine import Machine

        folder = Path("artifacts/engines/fp32")
        if right_hash:
            record = json.loads((folder / "engine.json").read_text())
            record["files"] = {name: sha256(folder / name) for name in record["files"]}
            (folder / "engine.json").write_text(json.dumps(record))
        machine = Machine.read(Path("artifacts/machine.json"))
        with open_engine(folder, machine, InferenceParams(threads=1, cuda_graph=False)) as engine:
            engine.run({"input": np.ones((2, 3, SIZE, SIZE), np.float32)})

    return read


def in_a_child(make: Callable[[Path], None], folder: Path) -> None:
    """Make what needs a library's threads: they must not start in the process that forks for each case."""
    if (child := os.fork()) == 0:
        try:
            make(folder)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _build(root: Path) -> None:
    from enginewright.core.params.build import Profile, Range
    from enginewright.data.sample_set import Manifest
    from enginewright.engine.build import DescribedGraph, build_engine
    from enginewright.engine.machine import target_of
    from enginewright.engine.runtimes import describe_machine

    given = root / "given.onnx"
    onnx.save(graph(), given)
    from enginewright.core.params.all import Params

    build = Params.read(ROOT / "params.yaml").build.model_copy(
        update={"profile": Profile(batch=Range(min=1, opt=2, max=4))}
    )
    machine = describe_machine("openvino")
    classes = tuple(f"class {number}" for number in range(CLASSES))
    manifest = Manifest(
        task="classification", source="x", inputs=("input",), preprocessing=None, class_names=classes, samples=()
    )
    (root / "artifacts").mkdir(exist_ok=True)
    machine.write(root / "artifacts/machine.json")
    build_engine(
        DescribedGraph("fp32", given, manifest),
        target_of(machine, build.tensorrt),
        build,
        root / "artifacts/engines/fp32",
    )
    given.unlink()


def _write_history(root: Path) -> None:
    from enginewright.measure.history import History, Night, Setting
    from enginewright.measure.records import Measurements

    measurements = Measurements.read(ROOT / "reports/measurements.json")
    folder = root / "history/a-machine"
    folder.mkdir(parents=True)
    setting = Setting(machine={"device_name": "a", "cores": 2, "runtime": "openvino"}, model={}, weights={}, samples={})
    history = History(folder, setting)
    history.append(
        Night(
            date=datetime(2026, 1, day, tzinfo=UTC), revision="abc", runtime_version="1", driver="", precision="int8",
            ratios=measurements.precisions[0].benchmark.ratios, accuracy=0.9, relative_error=0.01, engine_bytes=1,
            outcome=None, broken=(), good=True, kept=day == 1,
        )
        for day in (1, 2)
    )  # fmt: skip
    history.keep(measurements, {"int8": "0" * 32 + ".dir"})


def light_kinds(root: Path) -> list[Kind]:
    """Return the files that no large library reads. What surrounds them is written into the folder `root`."""
    lay_out(root)
    _write_history(root)
    text, raw, tree = mutations.of_text, mutations.of_bytes, mutations.of_json
    picture = Image.open(root / IMAGES / "plain/0.png")
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"
    how = {"jpeg": {"exif": exif}, "tiff": {"compression": "tiff_lzw"}}
    forms = ("png", "jpeg", "gif", "bmp", "tiff", "webp", "avif", "ppm")
    pictures = tuple(_saved(picture, form, how.get(form, {})) for form in forms)
    coco = json.dumps(_coco(), indent=1).encode()
    table = b"path,label\nplain/0.png,a\nplain/1.png,b\nplain/2.png,a\n"
    targets = b"path,target,target\nplain/0.png,1,2\nplain/1.png,0.5,3\nplain/2.png,1e3,-1\n"
    arrays = {"images": np.ones((COUNT, 9, 9, 3), np.uint8), "labels": np.arange(COUNT)}
    boxes = {"images": arrays["images"], "boxes": np.tile([1.0, 1, 1, 5, 5, 0], (COUNT, 2, 1))}
    inputs = {"input": np.ones((COUNT, 5), np.float32), "labels": np.arange(COUNT)}
    text_how = {"preprocessing": None, "text": {"tokenizer": str(TEXTS / "tokenizer.json"), "longest": 16}}
    jsonl = b'{"text": "word1 word2", "label": 1}\n{"text": "word3", "label": 0}\n{"text": "word4", "label": 1}\n'
    pairs = b'{"text_a": "word1", "text_b": "word2", "score": 1.5}\n{"text_a": "w", "text_b": "v", "score": 0}\n'
    params = (ROOT / "params.yaml").read_bytes()
    recipes = tuple(path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.yaml")))
    scales = [f"t{number}: {struct.pack('>f', 0.01 * number).hex()}" for number in range(1, 9)]
    cache = "\n".join(["TRT-101601-EntropyCalibration2", *scales, ""]).encode()
    past = "history/a-machine"
    lock = (ROOT / "dvc.lock").read_bytes()
    locked = json.dumps({"write": {"/a": {"pid": 1, "cmd": "dvc repro"}}, "read": {"/b": [{"pid": 1, "cmd": "x"}]}})
    return [
        Kind("calibration cache", "data/calibration.cache", (cache,), (text, raw), _cache),
        Kind("params.yaml", "params.yaml", (params,), (text, raw), _params),
        Kind("recipe", "recipe.yaml", recipes, (text, raw), _recipe),
        Kind(
            "COCO", str(IMAGES / "plain.json"), (coco,), (tree, raw, text), _samples(IMAGES / "plain.json", "detection")
        ),
        Kind(
            "YOLO labels",
            str(IMAGES / "yolo/labels/0.txt"),
            (b"1 0.5 0.5 0.2 0.3\n0 0.3 0.3 0.1 0.1\n",),
            (text, raw),
            _samples(IMAGES / "yolo", "detection"),
        ),
        Kind(
            "YOLO data.yaml",
            str(IMAGES / "yolo/data.yaml"),
            (b"names:\n  0: cat\n  1: dog\n", b"names: [cat, dog]\n"),
            (text, raw),
            _yolo,
        ),
        Kind("image", str(IMAGES / "plain/0.png"), pictures, (raw,), _samples(IMAGES / "plain")),
        Kind(
            "mask",
            str(IMAGES / "masked/masks/0.png"),
            ((root / IMAGES / "masked/masks/0.png").read_bytes(),),
            (raw,),
            _samples(IMAGES / "masked", "segmentation"),
        ),
        Kind("npy", str(IMAGES / "a.npy"), (_npy(arrays["images"]),), (raw,), _samples(IMAGES / "a.npy")),
        Kind("npz of images", str(IMAGES / "a.npz"), (_npz(arrays),), (mutations.of_zip,), _samples(IMAGES / "a.npz")),
        Kind(
            "npz of boxes",
            str(IMAGES / "a.npz"),
            (_npz(boxes),),
            (mutations.of_zip,),
            _samples(IMAGES / "a.npz", "detection"),
        ),
        Kind(
            "npz of inputs",
            str(IMAGES / "a.npz"),
            (_npz(inputs),),
            (mutations.of_zip,),
            _samples(IMAGES / "a.npz", preprocessing=None),
        ),
        Kind("CSV", str(IMAGES / "a.csv"), (table,), (text, raw), _samples(IMAGES / "a.csv")),
        Kind(
            "CSV of targets", str(IMAGES / "a.csv"), (targets,), (text, raw), _samples(IMAGES / "a.csv", "regression")
        ),
        Kind("list of classes", str(IMAGES / "names.txt"), (b"a\tcat\nb\tdog\n",), (text, raw), _classes),
        Kind(
            "JSON lines", str(TEXTS / "a.jsonl"), (jsonl,), (tree, raw, text), _samples(TEXTS / "a.jsonl", **text_how)
        ),
        Kind(
            "JSON lines, pairs",
            str(TEXTS / "a.jsonl"),
            (pairs,),
            (tree, text),
            _samples(TEXTS / "a.jsonl", "embedding", **text_how),
        ),
        Kind(
            "CSV of texts",
            str(TEXTS / "a.csv"),
            (b'text,label\nword1 word2,a\n"word3, word4",b\n',),
            (text, raw),
            _samples(TEXTS / "a.csv", **text_how),
        ),
        Kind(
            "tokenizer.json",
            str(TEXTS / "tokenizer.json"),
            ((root / TEXTS / "tokenizer.json").read_bytes(),),
            (tree, raw),
            _samples(TEXTS / "texts.txt", **text_how),
        ),
        Kind(
            "nights.jsonl",
            f"{past}/nights.jsonl",
            ((root / past / "nights.jsonl").read_bytes(),),
            (tree, raw),
            _history,
        ),
        Kind("good.json", f"{past}/good.json", ((root / past / "good.json").read_bytes(),), (tree, raw), _history),
        Kind(
            "good-engines.json",
            f"{past}/good-engines.json",
            ((root / past / "good-engines.json").read_bytes(),),
            (tree, raw),
            _history,
        ),
        Kind(
            "setting.json",
            f"{past}/setting.json",
            ((root / past / "setting.json").read_bytes(),),
            (tree, raw),
            _history,
        ),
        Kind(
            "verdict.json",
            "reports/verdict.json",
            ((ROOT / "reports/verdict.json").read_bytes(),),
            (tree, raw),
            _record("reports/verdict.json", "measure.records", "Verdict"),
        ),
        Kind(
            "manifest.json",
            "artifacts/manifest.json",
            (_manifest(),),
            (tree, raw),
            _record("artifacts/manifest.json", "data.sample_set", "Manifest"),
        ),
        Kind("dvc.lock", "dvc.lock", (lock,), (text, raw), _lock),
        Kind("rwlock", ".dvc/tmp/rwlock", (locked.encode(),), (tree, raw), _lock),
        Kind("journal of a search", "journal.jsonl", (b'["a", 1.5]\n["b", {"x": 1}]\n',), (tree, raw), _journal),
    ]


def heavy_kinds(root: Path) -> list[Kind]:
    """Return the files that PyTorch, ONNX Runtime, OpenVINO and the like read, in the same folder."""
    in_a_child(_build, root)
    raw, tree, proto = mutations.of_bytes, mutations.of_json, mutations.of_message(onnx.ModelProto)
    engine, model = "artifacts/engines/fp32", str(MODELS / "model.onnx")
    (blob,) = [name for name in os.listdir(root / engine) if name not in ("engine.json", "reproduce.sh")]
    compiled, apart = (root / engine / blob).read_bytes(), graph_with_data_apart()
    record, machine = (root / engine / "engine.json").read_bytes(), (root / "artifacts/machine.json").read_bytes()
    (root / MODELS / "model.onnx.data").write_bytes(np.ones(4 * 27, np.float32).tobytes())
    return [
        Kind("ONNX", model, (graph().SerializeToString(),), (proto,), _graph),
        Kind("ONNX, data apart", model, (apart,), (proto,), _graph),
        Kind("data of an ONNX file", f"{model}.data", (b"\0" * 432,), (raw,), _graph_apart(apart)),
        Kind("checkpoint", "data/weights/model.pt", _checkpoints(), (mutations.of_zip,), _checkpoint),
        Kind("engine", f"{engine}/{blob}", (compiled,), (raw,), _engine(False)),
        Kind("engine, right hash", f"{engine}/{blob}", (compiled,), (raw,), _engine(True)),
        Kind("engine.json", f"{engine}/engine.json", (record,), (tree, raw), _engine(False)),
        Kind("machine.json", "artifacts/machine.json", (machine,), (tree, raw), _engine(False)),
    ]


def _graph_apart(apart: bytes) -> Callable[[], object]:
    def read() -> None:
        (MODELS / "model.onnx").write_bytes(apart)
        _graph()

    return read


def _yolo() -> None:
    (IMAGES / "yolo/classes.txt").unlink()
    _samples(IMAGES / "yolo", "detection")()


def _classes() -> None:
    (IMAGES / "b.csv").write_text("path,label\nplain/0.png,a\nplain/1.png,b\n")
    _samples(IMAGES / "b.csv", class_names=str(IMAGES / "names.txt"))()


def _coco() -> dict[str, list[dict[str, object]]]:
    return {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 11, "height": 9} for n in range(COUNT)],
        "categories": [{"id": 1, "name": "cat"}, {"id": 7, "name": "dog"}],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 7, "bbox": [1, 1, 4.5, 5], "iscrowd": 0} for n in range(COUNT)
        ],
    }


def _manifest() -> bytes:
    from enginewright.data.sample_set import Manifest, Sample

    samples = tuple(Sample(name=str(n), sha256="0" * 64, label=n) for n in range(3))
    return (
        Manifest(
            task="classification",
            source="x",
            inputs=("input",),
            preprocessing=None,
            class_names=("a",),
            samples=samples,
        )
        .model_dump_json()
        .encode()
    )


def _saved(picture: Image.Image, form: str, how: dict[str, object]) -> bytes:
    packed = io.BytesIO()
    picture.save(packed, form, **how)
    return packed.getvalue()


def _npy(array: np.ndarray) -> bytes:
    packed = io.BytesIO()
    np.save(packed, array)
    return packed.getvalue()


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()
