"""More files that are read: what stages, commands, targets of a fleet and NVIDIA's tools hand on. See kinds.py."""

import json
import os
import shutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from support.paths import ROOT
from torture import mutations
from torture.kinds import Kind, in_a_child

TRACES, RESCUED = Path("data/traces/elsewhere"), Path("artifacts/rescued")
BUNDLE, MEASURED, FOLDER = Path("bundle"), Path("reports/measurements.json"), Path("data/models/bert")
LAYERS = ("conv1", "conv2", "fc")
POOLING = b'{"word_embedding_dimension": 16, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}'
MODULES = b'[{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Pooling"}]'


def light_kinds(root: Path) -> list[Kind]:
    """Return the kinds that need no large library. What surrounds them is written into the folder `root`."""
    raw, text, tree = mutations.of_bytes, mutations.of_text, mutations.of_json
    (root / TRACES).mkdir(parents=True)
    for precision in ("fp32", "int8"):
        (root / TRACES / f"{precision}.json").write_bytes(_trace(precision))
    shutil.copytree(ROOT / "reports", root / "before")
    _write_bundle(root / BUNDLE)
    answered, measured = Path("history/fleet/a-model-0123abcd/here.json"), (ROOT / MEASURED).read_bytes()
    return [
        Kind("fleet.yaml", "fleet.yaml", _fleets(), (text, raw), _fleet),
        Kind("answer of a target", str(answered), (_answer(measured),), (tree, raw), _answers(answered)),
        Kind("a target's trace", str(TRACES / "int8.json"), (_trace("int8"),), (tree, raw), _traces),
        Kind("measurements.json", str(MEASURED), (measured,), (tree, raw), _compare),
        Kind("search.json", "search.json", (_search(),), (tree, raw), _spared),
        Kind("rescue.json", "rescue.json", (_rescue(),), (tree, raw), _rescued),
        Kind("mix.json", "mix.json", (_mix(),), (tree, raw), _say_mix),
        Kind("rounded.npz", str(RESCUED / "rounded.npz"), (_rounded(root),), (mutations.of_zip,), _read_rounded),
        Kind("bundle.json", str(BUNDLE / "bundle.json"), ((root / BUNDLE / "bundle.json").read_bytes(),), (tree, raw),
             _verify),
    ]  # fmt: skip


def heavy_kinds(root: Path) -> list[Kind]:
    """Return the files of a model that transformers reads, if that is installed."""
    if not find_spec("transformers"):
        return []
    in_a_child(_write_model, root / FOLDER)
    config, weights = ((root / FOLDER / name).read_bytes() for name in ("config.json", "model.safetensors"))
    raw, tree = mutations.of_bytes, mutations.of_json
    import_module("transformers.models.bert")
    return [
        Kind("config.json", str(FOLDER / "config.json"), (config,), (tree, raw), _transformers),
        Kind("safetensors", str(FOLDER / "model.safetensors"), (weights,), (raw, mutations.of_safetensors),
             _transformers),
        Kind("modules.json", str(FOLDER / "modules.json"), (MODULES,), (tree, raw), _transformers),
        Kind("pooling", str(FOLDER / "1_Pooling/config.json"), (POOLING,), (tree, raw), _transformers),
    ]  # fmt: skip


def _fleets() -> tuple[bytes, ...]:
    return (
        (ROOT / "fleet.yaml").read_bytes(),
        b"cluster: head:6379\ntargets:\n  here: {price_per_hour: 0.5}\n  node: {ray: gpu}\n"
        b"  far: {ssh: user@board, python: python3.10}\n",
    )


def _fleet() -> None:
    from enginewright.targets.file import Fleet

    Fleet.read().only(())


def _answer(measured: bytes) -> bytes:
    from enginewright.measure.records import Measurements
    from enginewright.targets.answer import Answer, Measured, Speed

    known = Measurements.model_validate_json(measured)
    speed = Speed(batch=8, requests=2, p50=0.001, p99=0.002, images_per_second=4000.0, slowest=0.003)
    fast = Measured(precision="int8", verdict="passed", speeds=(speed,), metric="accuracy", relative_error=0.01)
    answer = Answer(target="here", model="resnet18", machine=known.machine, revision="abc", precisions=(fast,))
    return answer.model_dump_json().encode()


def _answers(path: Path) -> Callable[[], object]:
    def read() -> None:
        from enginewright.targets.answer import Answers

        answers = Answers(path.parent)
        if found := answers.of(path.stem):
            answers.keep(found.model_copy(update={"failed": "no answer"}))

    return read


def _trace(precision: str) -> bytes:
    from enginewright.engine.record import LayerTime
    from enginewright.measure.records import Measurements, Trace

    layers = tuple(
        LayerTime(name=name, kind="Conv", precision="f32", computes=True, milliseconds=0.1) for name in LAYERS
    )
    machine = Measurements.read(ROOT / MEASURED).machine
    return Trace(precision=precision, machine=machine, batch=2, calls=9, layers=layers).model_dump_json().encode()


def _traces() -> None:
    from enginewright.measure.records import Measurements
    from enginewright.precision.mixing import Bench, mixes_worth_trying, read_traces

    places = {name: number for number, name in enumerate(LAYERS)}
    bench = Bench(Measurements.read(ROOT / MEASURED).machine, inference=None, samples=None, batch=2)
    traces = read_traces(str(TRACES), ("int8", "fp32"), "best", places, TRACES.parent, bench)
    mixes_worth_trying(traces.medians)


def _compare() -> None:
    from enginewright.measure.comparison import compare_runs, conclusion, describe
    from enginewright.measure.history import read_measurements

    for before, after in ((MEASURED.parent, "before"), ("before", MEASURED.parent)):
        changes = compare_runs(read_measurements(str(before)), read_measurements(str(after)), 0.99)
        print(describe(changes, 0.99), conclusion(changes))


def _search() -> bytes:
    from enginewright.precision.records import Search, SearchedLayer, Step

    layers = tuple(SearchedLayer(name=name, op_type="Conv", work=0.3, loss=0.01) for name in LAYERS)
    step = Step(spared=0, work=0.0, cosine=0.9, relative_error=0.3, agreement=0.8, metric_drop=0.1, looked_at=8,
                spent=2.0)  # fmt: skip
    path = step, step.model_copy(update={"spared": 1, "work": 0.3, "spent": 0.5})
    return Search(precision="int8", calibration="a", model="b", rescue="c", layers=layers, samples=(8, 8, 8), path=path,
                  spared=("fc",)).model_dump_json().encode()  # fmt: skip


def _spared() -> None:
    from enginewright.precision.records import Search

    print(Search.read(Path("search.json")).in_words())


def _rescue() -> bytes:
    from enginewright.precision.records import Rescue, TriedRescue

    tried = (TriedRescue(names=("equalize",), error=0.1, at_once=0.1),
             TriedRescue(names=("equalize", "round"), error=None, at_once=None))  # fmt: skip
    found = Rescue(precision="int8", samples=(8, 8), error=0.2, at_once=0.2, tried=tried, kept=("equalize",),
                   enough=0.01)  # fmt: skip
    return found.model_dump_json().encode()


def _rescued() -> None:
    from enginewright.precision.records import Rescue

    print(Rescue.read(Path("rescue.json")).in_words())


def _mix() -> bytes:
    from enginewright.core.params.precisions import Keep
    from enginewright.engine.record import Speedup
    from enginewright.precision.records import BlockTimes, Candidate, Mix

    times = Speedup(middle=1.2, low=1.1, high=1.3)
    block = BlockTimes(first="a", last="b", milliseconds={"int8": 1, "fp32": 2})
    keep = Keep(op_types=(), nodes=())
    ways = ("int8", "int8"), ("fp32", "fp32"), ("int8", "fp32")
    tried = tuple(Candidate(assignment=assignment, spent=0.5, promised=times, raced=1.2) for assignment in ways)
    mix = Mix(precision="best", types=("int8", "fp32"), machine="a", traces=None, batch=2, calibration="a", model="b",
              blocks=(block, block), candidates=tried, mixed=2, rival="int8", promised=times, delivered=times,
              keep=keep, is_searched=True, spared=("fc",), floating={"fp32": ("conv1",)})  # fmt: skip
    return mix.model_dump_json().encode()


def _say_mix() -> None:
    from enginewright.precision.records import Mix

    print(Mix.read(Path("mix.json")).in_words())


def _rounded(root: Path) -> bytes:
    from enginewright.data.feeds import save_arrays
    from enginewright.precision.records import ROUNDED

    (root / RESCUED).mkdir(parents=True)
    save_arrays(root / RESCUED / ROUNDED, {"w1": np.ones((4, 3), np.int8), "w2": np.ones(5, np.int8)})
    return (root / RESCUED / ROUNDED).read_bytes()


def _read_rounded() -> None:
    from enginewright.precision.records import read_rounded

    [array.sum() for array in read_rounded(RESCUED).values()]


def _write_bundle(folder: Path) -> None:
    from enginewright.bundle.verify import MANIFEST, sha256

    folder.mkdir()
    for name in ("model.onnx", "infer.py"):
        (folder / name).write_text(name)
    files = {name: sha256(folder / name) for name in os.listdir(folder)}
    (folder / MANIFEST).write_text(json.dumps({"precision": "int8", "engine": "a", "files": files}, indent=1))


def _verify() -> None:
    from enginewright.bundle.verify import check
    from enginewright.core.errors import EnginewrightError

    if wrong := check(BUNDLE):
        raise EnginewrightError("; ".join(wrong))


def _write_model(folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(vocab_size=20, **small)).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_bytes(POOLING)
    (folder / "modules.json").write_bytes(MODULES)


def _transformers() -> None:
    import torch

    from enginewright.core.params.model import ModelParams
    from enginewright.model.from_transformers import described, folder_of, load_from_transformers

    params = ModelParams(source=f"transformers:{FOLDER}", arguments={})
    folder = folder_of(params, FOLDER.parent)
    model = load_from_transformers(described(params, folder), folder)
    model(torch.ones(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64))
