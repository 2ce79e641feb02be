"""Compare the outputs of PyTorch, of the typed graph and of the engine for the same samples. Errors of the quantization
and of the compiler look alike from outside. The graph, run without an optimizer, tells them apart: its error against
PyTorch comes from the precision, the engine's error against the graph from the compiler."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from enginewright.core.facts import PYTORCH
from enginewright.core.params.build import ENDS, Range
from enginewright.core.params.measuring import ValidationParams
from enginewright.core.params.precisions import Thresholds
from enginewright.data.feeds import Outputs, Run
from enginewright.data.run_all import OutputsOf, run_all
from enginewright.data.sample_set import SampleSet, padding_of
from enginewright.engine.engine import Engine
from enginewright.graph.as_written import run_as_written
from enginewright.measure.accuracy_records import Resized, Spot, Validation
from enginewright.measure.agreement import (
    agreement_of,
    broken_thresholds,
    compare,
    measure,
    metric_of,
    origin_of_loss,
    spread,
)
from enginewright.measure.examples import write_examples
from enginewright.measure.intervals import unsure_thresholds
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Task


class Elsewhere(NamedTuple):
    """Other machines that run the graph and the engine over a set; None: this process does."""

    graph: OutputsOf | None = None
    engine: OutputsOf | None = None


class Wanted(NamedTuple):
    """Holds the samples, and what an engine should return for them: what the source model did."""

    samples: SampleSet
    outputs: Outputs
    made_by: str = PYTORCH
    by_chance: bool = False  # whether these answers are no better for their own samples than for others
    doubt: str | None = None  # on how the samples are prepared


def validate_engine(
    engine: Engine,
    onnx: Path,
    wanted: Wanted,
    limits: Thresholds,
    params: ValidationParams,
    examples: Path | None = None,
    elsewhere: Elsewhere | None = None,
) -> Validation:
    """Validate an engine against what is wanted. Draw samples on which they differ into the folder `examples`.
    `elsewhere` runs engine and graph over the whole set on other machines."""
    samples, reference = wanted.samples, wanted.outputs
    task, as_written = _task_of(engine, samples), run_as_written(onnx)
    graph, compiled = _run_both(engine, as_written, samples, elsewhere or Elsewhere())
    results = measure(task, (reference, graph, compiled), samples.truth, limits)
    agreement = agreement_of(task, reference, compiled, limits, samples.manifest.kind)
    pairs = (reference, compiled), (reference, graph), (graph, compiled)
    engine_errors, graph_errors, compiler_errors = (compare(*task.comparable(*pair)) for pair in pairs)
    spots = _check_spots(engine, wanted, compiled, params.spot_samples, task)
    other_sizes = check_sizes(engine, as_written, samples, task)
    if examples is not None:
        write_examples(task, samples, reference, compiled, examples)
    doubt = task.doubt({name: values.shape for name, values in reference.items()})
    judged = results[0] if results else None
    broken = _broken_by_chance(task, wanted) if params.must_know and wanted.by_chance else ()
    broken += broken_thresholds(engine_errors, agreement, judged, limits, doubt, params.must_be_sure)
    return Validation(
        precision=engine.record.precision,
        task=samples.manifest.task,
        reference=wanted.made_by,
        engine=engine.record.identity,
        samples=len(samples),
        kind=samples.manifest.kind,
        samples_sha256=samples.list_sha256,
        results=results,
        metric=task.metrics[0].name,
        lacking=task.lacking,
        agreement=agreement,
        engine_against_pytorch=engine_errors,
        graph_against_pytorch=graph_errors,
        engine_against_graph=compiler_errors,
        spots=spots,
        resized=other_sizes,
        loss_comes_from=origin_of_loss(graph_errors, compiler_errors),
        broken=broken + broken_at_batches(spots, limits) + broken_at_sizes(other_sizes, limits),
        unsure=unsure_thresholds(agreement, judged, limits),
        must_be_sure=params.must_be_sure,
        padding=padding_of(samples, engine.record.profile.batch.max),
        spread=spread(*task.comparable(reference, compiled), task.leads_kept(reference, compiled)),
        doubt=wanted.doubt,
    )


def _task_of(engine: Engine, samples: SampleSet) -> Task:
    known, record = samples.manifest, engine.record
    task = task_of(known.task, record.scores, known.class_names, record.boxes, known.preprocessing)
    return task.knowing(samples.truth, np.arange(len(samples)))


def _broken_by_chance(task: Task, wanted: Wanted) -> tuple[str, ...]:
    return (
        f"{wanted.made_by}'s own {task.metrics[0].name} is no better than that of its answers to other "
        f"{wanted.samples.manifest.kind}, so that it judges nothing: the weights, the order of classes, the "
        "preprocessing or the tokenizer are not those of the model; or set validation.must_know: false",
    )


def _run_both(engine: Engine, as_written: Run, samples: SampleSet, elsewhere: Elsewhere) -> tuple[Outputs, Outputs]:
    """Return what the graph and the engine return for all samples."""
    precision, sizes = engine.record.precision, engine.record.profile.batch
    whole = sizes.min > 1
    graph = run_all(as_written, samples, sizes.max, whole, f"{precision}, the graph", outputs=elsewhere.graph)
    compiled = run_all(engine.run, samples, sizes.max, whole, f"{precision}, the engine", outputs=elsewhere.engine)
    return graph, compiled


def _check_spots(engine: Engine, wanted: Wanted, compiled: Outputs, count: int, task: Task) -> tuple[Spot, ...]:
    """Run the engine at its extreme batch sizes, and at those that its other profiles are tuned for."""
    record = engine.record
    sizes = {*spot_batches(record.profile.batch), *(each.batch.opt for each in record.build.all_profiles[1:])}
    return tuple(check_spot(engine, wanted, compiled, size, count, task) for size in sorted(sizes))


def spot_batches(sizes: Range) -> list[int]:
    """Return the smallest batch size, the largest, and an odd one between: dynamic shapes fail at these."""
    middle = (sizes.min + sizes.max) // 2
    return sorted({sizes.min, middle if middle % 2 else max(sizes.min, middle - 1), sizes.max})


def check_spot(engine: Engine, wanted: Wanted, compiled: Outputs, batch: int, count: int, task: Task) -> Spot:
    """Run full batches of one size, about `count` samples. A set that is too small is repeated."""
    samples = wanted.samples
    batches = max(1, min(count, len(samples)) // batch)
    chosen = np.arange(batches * batch) % len(samples)
    found = run_all(engine.run, samples, batch, False, f"at batch {batch}", chosen)
    return Spot(
        batch=batch,
        samples=len(chosen),
        errors=compare(*task.comparable(_select(wanted.outputs, chosen), found)),
        metric=metric_of(task, found, samples.truth, chosen),
        drift=compare(*task.comparable(_select(compiled, chosen), found)).relative,
    )


def check_sizes(engine: Engine, as_written: Run, samples: SampleSet, task: Task) -> tuple[Resized, ...]:
    """Compare the engine with its graph at the smallest and the largest sizes of its profile, and at those that others
    are tuned for. PyTorch is not needed: the export compared the graph with PyTorch at the former."""
    checks, profile = [], engine.record.profile
    wanted = [profile.at(bound) | {"batch": profile.batch.opt} for bound in ENDS]
    wanted += [each.at("opt") for each in engine.record.build.all_profiles[1:]]
    for sizes in wanted if profile.resizes else ():
        feeds = samples.at(sizes, profile).cycled(sizes["batch"])
        others = {axis: size for axis, size in sizes.items() if axis != "batch"}
        errors = compare(*task.comparable(as_written(feeds), engine.run(feeds)))
        checks.append(Resized(sizes=others, errors=errors))
    return tuple(checks)


def broken_at_batches(spots: Iterable[Spot], limits: Thresholds) -> tuple[str, ...]:
    """Return a sentence for each batch size that changes the outputs. The metric has no limit: too few images."""
    broken = []
    for spot in spots:
        if spot.errors.nonfinite:
            broken.append(f"at batch {spot.batch} {spot.errors.nonfinite} outputs are NaN or infinite")
        elif not spot.drift <= limits.relative_error:
            broken.append(f"at batch {spot.batch} the outputs differ by {spot.drift:.2e} from those of the full set")
    return tuple(broken)


def broken_at_sizes(checks: Iterable[Resized], limits: Thresholds) -> tuple[str, ...]:
    """Return a sentence for each size at which the engine and its graph differ."""
    broken = []
    for check in checks:
        where = ", ".join(f"{axis} {size}" for axis, size in check.sizes.items())
        if check.errors.nonfinite:
            broken.append(f"at {where} {check.errors.nonfinite} outputs are NaN or infinite")
        elif not check.errors.relative <= limits.relative_error:
            broken.append(f"at {where} the engine differs by {check.errors.relative:.2e} from the graph it was made of")
    return tuple(broken)


def _select(outputs: Outputs, indices: np.ndarray) -> Outputs:
    return {name: values[indices] for name, values in outputs.items()}
