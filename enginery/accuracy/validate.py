"""Compare the outputs of PyTorch, of the typed graph and of the engine for the same samples.

An error of the quantization and an error of the compiler look alike from outside. The graph, run without an optimizer,
tells them apart: the error between PyTorch and the graph comes from the precision, the error between the graph and the
engine from the compiler.
"""

from functools import partial
from pathlib import Path

import numpy as np

from enginery.accuracy.agreement import accuracy_of, broken_thresholds, compare, origin_of_loss, spread
from enginery.accuracy.records import Resized, Spot, Validation
from enginery.core.params.build import ENDS, Range
from enginery.core.params.precisions import Thresholds
from enginery.core.progress import progress
from enginery.data.feeds import Feeds, Outputs, Run, resized, scores_among
from enginery.data.sample_set import SampleSet, run_all
from enginery.engine.engine import Engine
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.bf16_twin import float32_twin, uses_bf16
from enginery.graph.onnx_file import load_graph
from enginery.model.records import PYTORCH


def validate_engine(
    engine: Engine,
    onnx: Path,
    samples: SampleSet,
    reference: Outputs,
    limits: Thresholds,
    spot_samples: int,
    made_by: str = PYTORCH,
) -> Validation:
    """Validate an engine against `reference`, the outputs that `made_by` returned for the same samples."""
    precision, sizes, named = engine.record.precision, engine.record.profile.batch, engine.record.scores
    scores = scores_among({name: values.shape for name, values in reference.items()}, samples.classes, named)
    as_written, whole = run_as_written(onnx), sizes.min > 1
    graph = run_all(as_written, samples, sizes.max, whole, f"{precision}, the graph")
    compiled = run_all(engine.run, samples, sizes.max, whole, f"{precision}, the engine")
    wanted_accuracy, graph_accuracy, got_accuracy = (
        accuracy_of(outputs, samples.labels, scores) for outputs in (reference, graph, compiled)
    )
    engine_errors = compare(reference, compiled, scores)
    graph_errors = compare(reference, graph, scores)
    compiler_errors = compare(graph, compiled, scores)
    spots = tuple(
        check_spot(engine, samples, reference, compiled, size, spot_samples, scores) for size in spot_batches(sizes)
    )
    other_sizes = check_sizes(engine, as_written, samples)
    drop = None if wanted_accuracy is None or got_accuracy is None else wanted_accuracy - got_accuracy
    broken = broken_thresholds(engine_errors, drop, limits, None if samples.classes or named else scores)
    for spot in spots:
        broken += broken_at_batch(spot, limits)
    for other in other_sizes:
        broken += broken_at_size(other, limits)
    return Validation(
        precision=precision,
        reference=made_by,
        engine=engine.record.identity,
        samples=len(samples),
        reference_accuracy=wanted_accuracy,
        graph_accuracy=graph_accuracy,
        engine_accuracy=got_accuracy,
        accuracy_drop=drop,
        engine_against_pytorch=engine_errors,
        graph_against_pytorch=graph_errors,
        engine_against_graph=compiler_errors,
        spots=spots,
        resized=other_sizes,
        loss_comes_from=origin_of_loss(graph_errors, compiler_errors),
        broken=broken,
        spread=spread(reference, compiled, scores),
    )


def run_as_written(onnx: Path) -> Run:
    """Return a function that runs the graph without an optimizer; bf16 runs as its float32 twin."""
    model = load_graph(onnx)
    return partial(run_graph, open_as_written(float32_twin(model) if uses_bf16(model) else model))


def spot_batches(sizes: Range) -> list[int]:
    """Return the smallest batch size, the largest, and an odd one between: dynamic shapes fail at these."""
    middle = (sizes.min + sizes.max) // 2
    return sorted({sizes.min, middle if middle % 2 else max(sizes.min, middle - 1), sizes.max})


def check_spot(
    engine: Engine,
    samples: SampleSet,
    reference: Outputs,
    compiled: Outputs,
    batch: int,
    count: int,
    scores: str | None = None,
) -> Spot:
    """Run full batches of one size, about `count` samples. A set that is too small is repeated."""
    batches = max(1, min(count, len(samples)) // batch)
    chosen = np.arange(batches * batch) % len(samples)
    parts = progress(np.split(chosen, batches), f"at batch {batch}", batches, "calls")
    results = [engine.run(samples.read_at(part)) for part in parts]
    found = {name: np.concatenate([result[name] for result in results]) for name in results[0]}
    labels = samples.labels
    return Spot(
        batch=batch,
        samples=len(chosen),
        errors=compare(_select(reference, chosen), found, scores),
        accuracy=accuracy_of(found, None if labels is None else labels[chosen], scores),
        drift=compare(_select(compiled, chosen), found).relative,
    )


def check_sizes(engine: Engine, as_written: Run, samples: SampleSet) -> tuple[Resized, ...]:
    """Compare the engine with its graph at the smallest and the largest image size of its profile.

    PyTorch is not needed: the export compared the graph with PyTorch at these sizes.
    """
    profile = engine.record.profile
    if not profile.resizes:
        return ()
    feeds = samples.cycled(profile.batch.opt)
    checks = []
    for bound in ENDS:
        other: Feeds = resized(feeds, samples.axes, profile.at(bound))
        errors = compare(as_written(other), engine.run(other))
        sizes = {axis: size for axis, size in profile.at(bound).items() if axis != "batch"}
        checks.append(Resized(sizes=sizes, errors=errors))
    return tuple(checks)


def broken_at_batch(spot: Spot, limits: Thresholds) -> tuple[str, ...]:
    """Return a sentence if the batch size changes the outputs. Accuracy has no limit here: the images are too few."""
    if spot.errors.nonfinite:
        return (f"at batch {spot.batch} {spot.errors.nonfinite} outputs are NaN or infinite",)
    if not spot.drift <= limits.relative_error:
        return (f"at batch {spot.batch} the outputs differ by {spot.drift:.2e} from those of the full set",)
    return ()


def broken_at_size(check: Resized, limits: Thresholds) -> tuple[str, ...]:
    """Return a sentence if the engine and its graph differ at this image size."""
    where = ", ".join(f"{axis} {size}" for axis, size in check.sizes.items())
    if check.errors.nonfinite:
        return (f"at {where} {check.errors.nonfinite} outputs are NaN or infinite",)
    if not check.errors.relative <= limits.relative_error:
        return (f"at {where} the engine differs by {check.errors.relative:.2e} from the graph it was made of",)
    return ()


def _select(outputs: Outputs, indices: np.ndarray) -> Outputs:
    return {name: values[indices] for name, values in outputs.items()}
