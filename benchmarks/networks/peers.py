"""Race int8 of this pipeline against NNCF's and ONNX Runtime's, of the same exported graph and the same samples.

    python benchmarks/networks/peers.py                       # the models of MODELS
    python benchmarks/networks/peers.py resnet50 swin_t       # two of them, or any that torchvision knows
    python benchmarks/networks/peers.py --jobs 5 --race-on 12 13  # five side by side; races take turns on two others
    python benchmarks/networks/peers.py --table               # the committed rows as a table, and a sentence about all

Each model has a process and a project of its own, with params.yaml as it comes but for the model, and the images' size
where it needs larger ones. Ours races each peer's in one process, in turns. NNCF gets the exported graph and the
calibration samples, and is told of a transformer what it is (`model_type`), as its documentation asks for; we are not.
The errors are those of the whole answers over the validation set, relative to PyTorch's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zoo
from filelock import FileLock
from zoo_models import GRAPH, needs_of

from enginewright.core.cores import usable_cores
from enginewright.core.params.all import Params

if TYPE_CHECKING:
    from enginewright.data.feeds import Feeds, Run
    from enginewright.data.sample_set import SampleSet
    from enginewright.engine.machine import Machine

HERE = Path(__file__).parent
ROWS = HERE / "peers.jsonl"
MODELS = (
    "resnet18", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5",
    "shufflenet_v2_x1_0", "densenet121", "googlenet", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "vit",
    "encoder",
)  # fmt: skip
TRANSFORMERS = ("vit", "encoder", "swin", "deit", "cait", "beit", "convnext")  # what NNCF is told of; names contain it
OWN: dict[str, dict[str, Any]] = {  # beside torchvision's: parameters of the two models of small_transformers.py
    "vit": {
        "model": {"source": "small_transformers:vit"},
        "weights": {"training": {"epochs": 8, "learning_rate": 0.0005}},
    },
    "encoder": {
        "model": {"source": "small_transformers:encoder"},
        "samples": {"source": "data/images/text.npz", "preprocessing": None, "training": 0},
        "weights": {"source": "data/weights/encoder.pt"},
    },
}
BATCHES = (1, 8)
SECONDS, MINUTES = 3.0, 60
OURS, FP32, NNCF, ORT = "Enginewright", "Enginewright fp32", "NNCF", "ONNX Runtime"
Row = dict[str, Any]
Call = Callable[[], object]
Binder = Callable[["Feeds"], Call]


class Contender(NamedTuple):
    bind: Binder  # for a race
    run: "Run"


Makers = dict[str, Callable[[], Contender]]


def run_model(name: str, row_file: Path, epochs: int | None, device: str, cores: Sequence[int]) -> None:
    """Make and race the engines of one model in the current folder, and write its row."""
    write_params(name, epochs, device)
    zoo.prepare(lambda _, call: call())

    from enginewright.data.sample_set import SampleSet
    from enginewright.engine.machine import Machine

    for precision in ("fp32", "int8"):
        zoo.make_engine(precision, lambda _, call: call())
    here = Machine.read(zoo.made_at("machine.json"))
    exported, calibration = zoo.made_at("exported/model.onnx"), SampleSet.open(zoo.made_at("samples/calibration"))
    makers: Makers = {
        label: partial(our_engine, precision, here) for label, precision in ((OURS, "int8"), (FP32, "fp32"))
    }
    failed = {}
    for label, quantize in ((NNCF, by_nncf), (ORT, by_onnxruntime)):
        try:
            makers[label] = quantize(name, exported, calibration)
        except Exception as error:  # a peer that fails is a row with its reason
            failed[label] = " ".join(str(error).split())[:200] or type(error).__name__
    validation = SampleSet.open(zoo.made_at("samples/validation"))
    row = {
        "model": name,
        "runtime": f"{here.runtime} {here.runtime_version}",
        "answers": dict(answers({label: make().run for label, make in makers.items()}, validation)),
        "without": failed,
    }
    with a_turn_on(cores):
        row["where"] = f"{here.device_name}, {usable_cores()} cores"
        row["milliseconds"] = race_all(makers, validation)
    row_file.write_text(json.dumps(row))


@contextmanager
def a_turn_on(cores: Sequence[int]) -> Iterator[None]:
    """Move to these cores, on which nothing else is prepared, and let one race at a time have them."""
    if not cores:
        yield
        return
    with FileLock(Path(tempfile.gettempdir(), f"peers-{cores[0]}.lock")):
        os.sched_setaffinity(0, cores)
        yield


def write_params(name: str, epochs: int | None, device: str) -> None:
    """Write params.yaml as it comes, but for the model, what it reads, and how and where it is trained."""
    if name in OWN:
        shutil.copyfile(HERE / "small_transformers.py", "small_transformers.py")
        needed = OWN[name]
        needed["weights"].setdefault("training", {})["device"] = device
    else:
        needed = needs_of(name, epochs, device)["changes"]
    if name == "encoder":
        for folder in ("images", "weights"):
            Path("data", folder).mkdir(parents=True)
        command = [sys.executable, "small_transformers.py", "data/images/text.npz", "data/weights/encoder.pt", device]
        subprocess.run(command, check=True)
    zoo.lay_over_params(needed | {"runtime": "openvino"})  # as NNCF's graph; a GPU may be there
    zoo.change_params({"build": {"pixels": None}})  # the peers' graphs read floats


def our_engine(precision: str, here: "Machine") -> Contender:
    """Open ours with as many threads as the peers have: a race may have fewer cores than machine.json counts."""
    from enginewright.engine.engine import open_engine

    engine = open_engine(zoo.made_at(f"engines/{precision}"), here, Params.read().inference.on(usable_cores()))
    return Contender(engine.bind, engine.run)


def by_nncf(name: str, exported: Path, calibration: "SampleSet") -> Callable[[], Contender]:
    """Quantize as NNCF's documentation says, and run with OpenVINO, in float32 where it is not int8."""
    import nncf
    import openvino

    told = {"model_type": nncf.ModelType.TRANSFORMER} if any(each in name for each in TRANSFORMERS) else {}
    batches = list(calibration.batches(8))
    graph = openvino.Core().read_model(exported)
    return partial(openvino_engine, nncf.quantize(graph, nncf.Dataset(batches), subset_size=len(batches), **told))


def openvino_engine(model: Any, number_type: str = "f32") -> Contender:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": number_type, "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": usable_cores()}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    outputs = [output.any_name for output in compiled.outputs]

    def bind(feeds: "Feeds") -> Call:
        request = compiled.create_infer_request()
        placed = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        for tensor, array in placed.items():
            request.set_tensor(tensor, openvino.Tensor(array, shared_memory=True))

        def call(held: object = placed) -> dict[str, Any]:  # the request knows only their addresses
            return dict(zip(outputs, request.infer(share_outputs=True).values(), strict=True))

        return call

    return Contender(bind, partial(run_bound, bind))


def by_onnxruntime(name: str, exported: Path, calibration: "SampleSet") -> Callable[[], Contender]:
    """Quantize by ONNX Runtime's static quantizer after its own preprocessing, and run with its CPU provider."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[Feeds] = iter(calibration.batches(8))

        def get_next(self) -> Any:
            return next(self.batches, None)

    quantized = "onnxruntime.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        prepared = str(Path(scratch, "prepared.onnx"))
        quant_pre_process(str(exported), prepared, skip_symbolic_shape=True)
        quantize_static(prepared, quantized, Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    return partial(onnxruntime_engine, quantized)


def onnxruntime_engine(quantized: str) -> Contender:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    session = onnxruntime.InferenceSession(quantized, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def bind(feeds: "Feeds") -> Call:
        return lambda: dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return Contender(bind, partial(run_bound, bind))


def run_bound(bind: Binder, feeds: "Feeds") -> Any:
    return bind(feeds)()


def answers(runs: Mapping[str, "Run"], validation: "SampleSet") -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yield what each contender's answers are worth, beside PyTorch's."""
    from enginewright.data.sample_set import output_file
    from enginewright.measure.agreement import compare, metric_of
    from enginewright.measure.records import Reference
    from enginewright.tasks.choose import task_of

    name, *_ = Reference.read(zoo.made_at("reference/reference.json")).outputs
    wanted = np.load(zoo.made_at("reference") / output_file(0))
    labels = np.array([-1 if sample.label is None else sample.label for sample in validation.manifest.samples])
    task, places = task_of("classification", name), np.arange(len(labels))
    yield "PyTorch", {"accuracy": metric_of(task, {name: wanted}, labels, places)}
    for label, run in runs.items():
        found = np.concatenate([np.array(run(feeds)[name]) for feeds in validation.batches(8)])
        errors = compare({name: wanted}, {name: found})
        same = task.agree({name: wanted}, {name: found})
        assert same is not None  # a classifier's
        differences = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        yield (
            label,
            {
                "error": errors.relative,
                "typical_error": float(np.mean(differences)),
                "cosine": errors.cosine,
                "agreement": float(same.mean()),
                "accuracy": metric_of(task, {name: found}, labels, places),
            },
        )


def race_all(makers: Makers, validation: "SampleSet") -> dict[str, Row]:
    """Return the median of each by batch size, and how many times as long as each peer's ours takes, with its interval.

    Ours races each peer in laps, which open both anew: a copy of an engine is up to 3 % faster than another.
    """
    from enginewright.measure.race import AFTER, BEFORE, race_sides

    params = Params.read().benchmark.model_copy(update={"batches": BATCHES, "seconds": SECONDS})
    found: dict[str, Row] = {str(batch): {} for batch in BATCHES}
    for peer in (name for name in makers if name != OURS):
        sides = {BEFORE: opened(makers[peer]), AFTER: opened(makers[OURS])}
        for change in race_sides(sides, validation, params, peer).values():
            times = change.times(params.confidence)
            ratios = [1 / times.middle, 1 / times.high, 1 / times.low]  # our time over theirs
            row = found[str(change.batch)]
            row |= {peer: change.before, f"over {peer}": ratios}
            if peer == NNCF or OURS not in row:  # beside ONNX Runtime, whose threads spin, ours takes longer
                row[OURS] = change.after
    return found


def opened(maker: Callable[[], Contender]) -> Callable[[], AbstractContextManager[Binder]]:
    return lambda: nullcontext(maker().bind)


def table(rows: list[Row]) -> str:
    """Write a row for each model: errors, accuracies, and how long ours takes, NNCF's being 1."""
    lines = [
        "| model | error: ours, NNCF, ONNX Runtime | typical error | accuracy: PyTorch, ours, NNCF, ONNX Runtime "
        "| ms at batch 1: ours, NNCF, ONNX Runtime, our fp32 | ours over NNCF | ms at batch 8 | ours over NNCF |",
        "|---" * 8 + "|",
    ]
    for row in {row["model"]: row for row in rows if "answers" in row}.values():
        found, times = row["answers"], row["milliseconds"]

        def of(what: str, names: tuple[str, ...], form: str, found: Row = found) -> str:
            return ", ".join(form.format(found[each][what]) if each in found else "-" for each in names)

        cells = [
            row["model"],
            of("error", (OURS, NNCF, ORT), "{:.4f}"),
            of("typical_error", (OURS, NNCF, ORT), "{:.4f}"),
            of("accuracy", ("PyTorch", OURS, NNCF, ORT), "{:.1%}"),
        ]
        for batch in map(str, BATCHES):
            each = times[batch]
            cells.append(", ".join(f"{each[name]:.3g}" if name in each else "-" for name in (OURS, NNCF, ORT, FP32)))
            cells.append(with_interval(*each.get(f"over {NNCF}", (np.nan,) * 3)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """Count the networks where our error is the smaller, and where ours is no slower: faster, or the interval has 1."""
    last = [row for row in {row["model"]: row for row in rows if "answers" in row}.values() if NNCF in row["answers"]]
    closer = [row for row in last if row["answers"][OURS]["error"] < row["answers"][NNCF]["error"]]
    less = np.median([row["answers"][OURS]["error"] / row["answers"][NNCF]["error"] for row in last])
    over = [[row["milliseconds"][str(batch)][f"over {NNCF}"] for batch in BATCHES] for row in last]
    faster = [f"{np.median([1 / each[place][0] for each in over]):.2f}" for place in range(len(BATCHES))]
    no_slower = sum(all(low <= 1 for _, low, _ in each) for each in over)
    return (
        f"Our error is the smaller in {len(closer)} of {len(last)}, in the median {less:.2f} of NNCF's. Ours is "
        f"{' and '.join(faster)} times as fast in the median, and no slower at any batch size in {no_slower}."
    )


def with_interval(middle: float, low: float, high: float) -> str:
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = zoo.parser_of(__doc__, MODELS, ROWS)
    parser.add_argument("--epochs", type=int, help="of torchvision's models; 0 to see only that all of it runs")
    parser.add_argument("--device", choices=("cpu", "cuda", GRAPH), default="cpu", help="where to train")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, each on its share of the other cores")
    parser.add_argument("--race-on", type=int, nargs="*", default=[], help="the cores that races take turns on")
    options = parser.parse_args()
    if options.table:
        print(table(zoo.read(options.rows)), summary(zoo.read(options.rows)), sep="\n\n")
    elif options.one:
        run_model(options.models[0], options.one, options.epochs, options.device, options.race_on)
    else:
        given = ["--device", options.device]
        given += [] if options.epochs is None else ["--epochs", str(options.epochs)]
        if options.race_on:
            given += ["--race-on", *map(str, options.race_on)]
            os.sched_setaffinity(0, os.sched_getaffinity(0) - set(options.race_on))
        for row in zoo.on_this_machine(options.models, options.jobs, MINUTES, given, __file__):
            zoo.keep(options.rows, row)
            print(table([row]) if "answers" in row else json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
