"""Build int8 the old way, from calibration.cache and without Q/DQ nodes, and race it against the engine with them.

    python benchmarks/gpu/implicit.py                # in a project, after `dvc repro` with runtime: tensorrt
    python benchmarks/gpu/implicit.py --skip-own     # without a calibration by TensorRT itself

The old way is called implicit: TensorRT is given a graph in float32 and a scale for each tensor, and chooses by itself
which layers run in int8. TensorRT 10 has it, 11 does not. One engine takes its scales from our calibration.cache and
must ask for no sample, another from TensorRT's own calibration on the same samples. Printed, and appended to --rows:

- what TensorRT made of each cache, whether our reader takes TensorRT's, and how far its scales are from ours;
- in which types each engine's layers run, and how many layers only change a type or a layout;
- how far each engine is from PyTorch over the validation set, and which thresholds of int8 it breaks;
- milliseconds, each engine replayed as a CUDA graph, and how many times as fast as the engine with Q/DQ nodes it is by
  the GPU's clock. An engine opened twice can be 3 % faster in one copy than in the other:
  enginewright/measure/race.py.

Exits 1 if an implicit engine could not be made as it should. It calibrates at the sizes that build.profile tunes for.
"""

import importlib
import json
import shutil
import struct
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import ARTIFACTS, CONVERTED, ENGINES, MACHINE, VALIDATION_SAMPLES, sha256
from enginewright.core.params.all import Params
from enginewright.data.feeds import Outputs
from enginewright.data.run_all import outputs_here, run_all
from enginewright.data.sample_set import SampleSet, output_file
from enginewright.engine.engine import Engine, open_engine
from enginewright.engine.machine import Machine
from enginewright.engine.record import RECORD, EngineRecord, read_engine
from enginewright.engine.runtimes.tensorrt import PLAN, TensorRT
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.agreement import agreement_of, broken_thresholds, compare, measure
from enginewright.measure.benchmark import race_contenders
from enginewright.measure.contenders import pace_meter
from enginewright.measure.records import Reference
from enginewright.measure.timing import Timings, median_interval, whole_machine
from enginewright.precision.calibration.cache import provided_provenance, read_cache, require_tensors
from enginewright.precision.quantize import quantized_activations
from enginewright.precision.write_int8 import LARGEST
from enginewright.tasks.choose import task_of

SIMPLIFIED, OUR_CACHE = ARTIFACTS / "simplified" / "model.onnx", ARTIFACTS / "calibrated" / "calibration.cache"
EXPLICIT, OURS, THEIRS = "with Q/DQ", "our cache", "TensorRT's cache"
Row = dict[str, Any]
Keep = Callable[..., None]  # appends a row: its step, and what was found
say = partial(print, flush=True)  # what waits in a buffer is lost when the machine's time is over


class Implicit(TensorRT):
    """Builds as the project does, but leaves it to TensorRT which layers run in int8, float16 or float32."""

    def make(self, folder: Path, calibrator: Any, like: EngineRecord) -> Row:
        """Make an engine's folder like that of the engine with Q/DQ nodes, so that it is opened like any other. Return
        what TensorRT made of the calibrator; `why_not` is None if there is an engine."""
        trt, blueprint, started = self.trt, read_blueprint(SIMPLIFIED, like.build), time.perf_counter()
        others = shutil.ignore_patterns(PLAN)
        shutil.copytree(ENGINES / "int8", folder, ignore=others, copy_function=shutil.copyfile, dirs_exist_ok=True)
        self.log.lines.clear()
        builder = self.started(trt.Builder, folder, like.build)
        network = builder.create_network(0)  # without STRONGLY_TYPED
        parser = self._parse(network, SIMPLIFIED, like.build)
        config, profile = self._configure(builder, blueprint), builder.create_optimization_profile()
        for flag in (trt.BuilderFlag.INT8, trt.BuilderFlag.FP16):
            config.set_flag(flag)
        config.int8_calibrator = calibrator
        for spec in blueprint.interface.inputs:
            profile.set_shape(spec.name, *[spec.at(like.profile.at("opt"))] * 3)
        if not config.set_calibration_profile(profile):
            raise EnginewrightError(f"TensorRT refuses to calibrate at the sizes of build.profile: {self.why()}")
        with self._timing_cache(config, like.build):
            plan = builder.build_serialized_network(network, config)
        said = list(self.log.lines)
        row = {
            "why_not": None if plan else self.why(),
            "read": calibrator.reads,
            "batches_asked_for": calibrator.asked,
            "tensors_without_scale": sum("Missing scale" in line for line in said),
            "seconds": round(time.perf_counter() - started, 1),
            "warnings": list(dict.fromkeys(said))[:20],
        }
        if plan:
            (folder / PLAN).write_bytes(plan)
            layers = tuple(layer for layer in self._layers(folder, blueprint) if not layer.profile)
            files = like.files | {PLAN: sha256(folder / PLAN)}
            changes: Row = {"files": files, "onnx_sha256": graph_sha256(SIMPLIFIED), "interface": blueprint.interface}
            changes |= {"layers": layers, "tuned_layers": ()}
            like.model_copy(update=changes).write(folder / RECORD)
        del parser  # only now, since it holds the network's weights
        return row


def new_calibrator(
    trt: Any, size: int, cache: bytes | None = None, batches: Sequence[Mapping[str, torch.Tensor]] = ()
) -> Any:
    class Calibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        """Gives a cache, or batches. It counts and never raises: the bindings would only print the exception, and
        TensorRT would go on as if there were no more samples."""

        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)  # pybind11 asks for this form instead of super()
            self.reads, self.asked, self.written = 0, 0, b""

        def get_batch_size(self) -> int:
            return size

        def get_batch(self, names: list[str]) -> list[int] | None:
            self.asked += 1
            batch = batches[self.asked - 1] if self.asked <= len(batches) else None
            return None if batch is None else [batch[name].data_ptr() for name in names]

        def read_calibration_cache(self) -> bytes | None:
            self.reads += 1
            return cache

        def write_calibration_cache(self, cache: Any) -> None:
            self.written = bytes(cache)

    return Calibrator()


def with_our_cache(runtime: Implicit, trt: Any, folder: Path, explicit: EngineRecord, keep: Keep) -> bool:
    """Build with our cache as it is. If TensorRT does not take it, try the first line that this version would write."""
    header, _, scales = OUR_CACHE.read_bytes().partition(b"\n")
    major, minor, patch = map(int, trt.__version__.split(".")[:3])
    its_own = f"TRT-{10_000 * major + 100 * minor + patch}-EntropyCalibration2".encode()
    for first_line in dict.fromkeys([header, its_own]):
        calibrator = new_calibrator(trt, explicit.profile.batch.opt, cache=first_line + b"\n" + scales)
        row = runtime.make(folder, calibrator, explicit)
        taken = row["why_not"] is None and calibrator.reads > 0 and not calibrator.asked
        keep("build", engine=OURS, first_line=first_line.decode(), taken=taken, **row)
        say(f"{OURS}, first line {first_line.decode()}: {'taken' if taken else 'NOT TAKEN'}; {in_words(row)}")
        if taken:
            return True
    return False


def with_their_cache(
    runtime: Implicit, trt: Any, folder: Path, explicit: EngineRecord, cache: Path, keep: Keep
) -> bool:
    """Let TensorRT calibrate on our samples, keep its cache, and tell whether it went through all of them."""
    size, samples = explicit.profile.batch.opt, SampleSet.open(ARTIFACTS / "samples" / "calibration")
    # All are on the GPU before it begins: see the calibrator. The last batch is filled from the start of the set.
    batches = [
        {name: torch.from_numpy(np.ascontiguousarray(array)).cuda() for name, array in feeds.items()}
        for feeds in samples.batches(size, whole=True)
    ]
    torch.cuda.synchronize()
    calibrator = new_calibrator(trt, size, batches=batches)
    row = runtime.make(folder, calibrator, explicit)
    cache.write_bytes(calibrator.written)
    keep("build", engine=THEIRS, batches=len(batches), cache=str(cache), **row)
    say(f"{THEIRS}, {len(batches)} batches of {size}: {in_words(row)}")
    say(f"  its cache is {cache}: copy it to data/calibration/ for calibration.file: data/calibration/{cache.name}")
    return row["why_not"] is None and calibrator.asked >= len(batches)


def compare_caches(cache: Path, params: Params, keep: Keep) -> None:
    """Read TensorRT's cache as calibration.file is read, and hold its scales against ours."""
    needed, answer = quantized_activations(load_graph(CONVERTED / "int8/model.onnx"), load_graph(SIMPLIFIED)), "taken"
    try:
        given = params.calibration.model_copy(update={"file": str(cache)})
        require_tensors(provided_provenance(given, cache, read_cache(cache)), needed)
    except EnginewrightError as error:  # that it is refused is an answer, too, and the scales are compared nevertheless
        answer = f"REFUSED: {error}"
    header, *lines = cache.read_text(encoding="utf-8").splitlines() or [""]
    pairs = [line.rsplit(":", 1) for line in lines if line.strip()]
    theirs = {name: struct.unpack(">f", bytes.fromhex(text.strip().zfill(8)))[0] for name, text in pairs}
    ours = {name: largest / LARGEST for name, largest in read_cache(OUR_CACHE).items()}
    ratios = {name: ours[name] / scale for name, scale in theirs.items() if name in ours and scale > 0}
    sides = {"only_ours": sorted(ours.keys() - theirs.keys()), "only_theirs": sorted(theirs.keys() - ours.keys())}
    say(f"{cache}, first line {header}, as calibration.file for {len(needed)} tensors that int8 rounds: {answer}")
    say(f"  tensors: both {len(ratios)}", *(f"{side} {len(names)}" for side, names in sides.items()), sep=", ")
    shares = {}
    for what, names in {"all": [*ratios], "rounded": [name for name in ratios if name in needed]}.items():
        if names:
            shares[what] = np.percentile([ratios[name] for name in names], [5, 50, 95]).tolist()
            say(f"  {what}: ours / TensorRT's at 5 %, 50 %, 95 %: {', '.join(f'{each:.3f}' for each in shares[what])}")
    farthest = sorted(ratios, key=lambda name: -abs(np.log(ratios[name])))[:10]
    rows = [(name, ours[name], theirs[name], ratios[name]) for name in farthest]
    show(
        ("farthest apart", "ours", "TensorRT's", "ratio"), *((name, *map("{:.4g}".format, row)) for name, *row in rows)
    )
    keep("caches", header=header, answer=answer, both=len(ratios), **sides, ratios=shares, farthest=rows)


def describe_layers(folders: Mapping[str, Path], keep: Keep) -> None:
    lines = []
    for name, folder in folders.items():
        record = read_engine(folder)
        # Each is a layer of its own, of a type that NVIDIA calls Reformat. The rest of a kind is the name of a kernel.
        reformats = [each for each in record.layers if "reformat" in f"{each.kind.split(' ')[0]} {each.name}".lower()]
        every = dict(Counter(each.precision for each in record.layers).most_common())
        numbers = {"layers": len(record.layers), "reformats": len(reformats)}
        lines.append((name, *numbers.values(), in_words(record.executed), in_words(every)))
        keep("layers", engine=name, **numbers, compute_layers=record.executed, all_layers=every)
    show(("engine", "layers", "reformats", "compute layers", "all layers"), *lines)


def compare_with_pytorch(engines: Mapping[str, Engine], params: Params, keep: Keep) -> None:
    """Compare each engine with PyTorch as the stage validate does, by the thresholds of int8."""
    samples, folder = SampleSet.open(VALIDATION_SAMPLES), ARTIFACTS / "reference"
    limits, sure = params.precisions["int8"].thresholds, params.validation.must_be_sure
    names, known = Reference.read(folder / "reference.json").outputs, samples.manifest
    wanted: Outputs = {name: np.load(folder / output_file(number), mmap_mode="r") for number, name in enumerate(names)}
    lines = []
    for engine_name, engine in engines.items():
        record, sizes = engine.record, engine.record.profile.batch
        task = task_of(known.task, record.scores, known.class_names, record.boxes, known.preprocessing)
        task = task.knowing(samples.truth, np.arange(len(samples)))
        found = run_all(outputs_here(engine.run), samples, sizes.max, sizes.min > 1)
        errors = compare(*task.comparable(wanted, found))
        agreement = agreement_of(task, wanted, found, limits, known.kind)
        result = next(iter(measure(task, (wanted, found, found), samples.truth, limits)), None)
        broken = broken_thresholds(errors, agreement, result, limits, must_be_sure=sure)
        row: Row = {"relative_error": errors.relative, "cosine": errors.cosine}
        row |= {"agreement": agreement and agreement.share, "drop": result and result.drop}
        keep("accuracy", engine=engine_name, replays=engine.replays, broken=broken, **row)
        figures = ("-" if value is None else f"{value:.5f}" for value in row.values())
        lines.append((engine_name, *figures, "; ".join(broken) or "none"))
    show(("engine", "relative error", "cosine", "agreement", "drop", "broken thresholds"), *lines)


def race(engines: Mapping[str, Engine], params: Params, threads: int, seconds: float, keep: Keep) -> None:
    """Race all in turns, one batch size after the other, so that those before are kept if the machine's time ends."""
    samples, rng = SampleSet.open(VALIDATION_SAMPLES).tuned(params.build), np.random.default_rng(0)
    binds, read_pace = {name: engine.bind for name, engine in engines.items()}, pace_meter("cuda", threads)
    for batch in sorted({params.build.profile.batch.opt, *params.benchmark.batches}):
        how = params.benchmark.model_copy(update={"batches": (batch,), "seconds": seconds, "baselines": ()})
        with whole_machine("benchmarks/gpu/implicit.py"):
            raced = race_contenders(binds, samples, how, read_pace, f"batch {batch}")
        lines = []
        for one in raced.latencies:
            ratios = on_gpu(raced.counted[batch], EXPLICIT) / on_gpu(raced.counted[batch], one.contender)
            middle, (low, high) = float(np.median(ratios)), median_interval(ratios, how.confidence, rng)
            times = f"{middle:.3f} ({low:.3f} to {high:.3f})"
            lines.append((batch, one.contender, f"{one.compute:.4f}", f"{one.p50:.4f}", times))
            keep("race", **one.model_dump(), times=[middle, low, high], replays=engines[one.contender].replays)
        show(("batch", "engine", "ms on the GPU", "ms with copies", f"times {EXPLICIT}"), *lines)


def on_gpu(timings: Timings, name: str) -> np.ndarray:
    """Return the median seconds of each round by the GPU's clock."""
    return np.array([median(call.compute or np.nan for call in each.turns[name]) for each in timings.rounds])


def in_words(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.items() if name != "warnings")


def show(*rows: Sequence[object]) -> None:
    """Print a table with aligned columns."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def append_row(rows: Path, version: str, step: str, **found: Any) -> None:
    rows.parent.mkdir(parents=True, exist_ok=True)
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "tensorrt": version, **found}) + "\n")


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--folder", type=Path, default=ARTIFACTS / "implicit", help="for engines and TensorRT's cache")
    parser.add_argument("--seconds", type=float, default=1.0, help="of the race, for each engine and batch size")
    parser.add_argument("--skip-own", action="store_true", help="leave out the calibration by TensorRT itself")
    options = parser.parse_args()
    trt = importlib.import_module("tensorrt")
    if not hasattr(trt, "IInt8EntropyCalibrator2"):
        sys.exit(f"TensorRT {trt.__version__} has no implicit int8 and no calibrators: this needs TensorRT 10")
    params, here, explicit = Params.read(), Machine.read(MACHINE), read_engine(ENGINES / "int8")
    keep = partial(append_row, options.rows, trt.__version__)
    runtime = Implicit("tensorrt")  # one for all, which lives on: TensorRT keeps the log of a process's first builder
    ours, theirs, cache = (options.folder / name for name in ("ours", "theirs", "tensorrt.cache"))
    folders = {EXPLICIT: ENGINES / "int8", "fp16": ENGINES / "fp16"}
    if with_our_cache(runtime, trt, ours, explicit, keep):
        folders[OURS] = ours
    if not options.skip_own:
        if with_their_cache(runtime, trt, theirs, explicit, cache, keep):
            folders[THEIRS] = theirs
        compare_caches(cache, params, keep)
    describe_layers(folders, keep)
    inference = params.inference.on(here.cores).model_copy(update={"cuda_graph": True})
    with ExitStack() as opened:
        engines = {name: opened.enter_context(open_engine(each, here, inference)) for name, each in folders.items()}
        compare_with_pytorch(engines, params, keep)
        race(engines, params, inference.threads, options.seconds, keep)
    if len(folders) < (3 if options.skip_own else 4):
        sys.exit("an implicit engine was not made as it should be: see above")


if __name__ == "__main__":
    main()
