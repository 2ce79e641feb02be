"""Compare the outputs of PyTorch, of the typed graph and of the engine for the same samples. The graph, run without an
optimizer, tells their errors apart: its error against PyTorch comes from the precision, the engine's against the graph
from the compiler."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from enginewright.core.facts import PYTORCH
from enginewright.core.params.build import ENDS, Range, ValidationParams
from enginewright.core.params.precisions import Thresholds
from enginewright.data.feeds import Outputs, Run
from enginewright.data.run_all import OutputsOf, outputs_here, run_all
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import Engine
from enginewright.measure import agreement
from enginewright.measure.examples import write_examples
from enginewright.measure.intervals import unsure_thresholds
from enginewright.measure.records import Resized, Spot, Validation
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Task


class Expected(NamedTuple):
    """Holds the samples, what an engine should return for them, and how far from that it may be."""

    samples: SampleSet
    outputs: Outputs  # of the source model
    limits: Thresholds
    made_by: str = PYTORCH
    by_chance: bool = False  # whether these answers are no better for their own samples than for others
    doubt: str | None = None  # on how the samples are prepared


def validate_engine(
    engine: Engine,
    run_graph: Run,
    expected: Expected,
    params: ValidationParams,
    examples: Path | None = None,
    elsewhere: Sequence[OutputsOf | None] = (None, None),
) -> Validation:
    """Validate an engine against what is expected, and against its graph, as `run_graph` runs it without an optimizer.
    Draw samples on which they differ into the folder `examples`. `elsewhere` has what runs graph and engine over the
    whole set on other machines."""
    samples, reference, limits, record = expected.samples, expected.outputs, expected.limits, engine.record
    known, sizes, kind = samples.manifest, record.profile.batch, samples.manifest.kind
    task = task_of(known.task, record.scores, known.class_names, record.boxes, known.preprocessing)
    task = task.knowing(samples.truth, np.arange(len(samples)))
    graph, compiled = (
        run_all(there or outputs_here(run), samples, sizes.max, sizes.min > 1, f"{record.precision}, the {name}")
        for name, run, there in zip(("graph", "engine"), (run_graph, engine.run), elsewhere, strict=True)
    )
    results = agreement.measure(task, (reference, graph, compiled), samples.truth, limits)
    judged = results[0] if results else None
    agreed = agreement.agreement_of(task, reference, compiled, limits, kind)
    pairs = (reference, compiled), (reference, graph), (graph, compiled)
    engine_errors, graph_errors, compiler_errors = (agreement.compare(*task.comparable(*pair)) for pair in pairs)
    batches = {*spot_batches(sizes), *(each.batch.opt for each in record.build.all_profiles[1:])}
    spots = tuple(check_spot(engine, expected, compiled, each, params.spot_samples, task) for each in sorted(batches))
    other_sizes = _check_sizes(engine, run_graph, samples, task)
    if examples is not None:
        write_examples(task, samples, reference, compiled, examples)
    doubt = task.doubt({name: values.shape for name, values in reference.items()})
    broken = [
        *agreement.broken_thresholds(engine_errors, agreed, judged, limits, doubt, params.must_be_sure),
        *_broken_elsewhere(spots, other_sizes, limits.relative_error),
    ]
    if params.must_know and expected.by_chance:
        broken.insert(
            0,
            f"{expected.made_by}'s own {task.metrics[0].name} is no better than that of its answers to other {kind}, "
            "so that it judges nothing: the weights, the order of classes, the preprocessing or the tokenizer are not "
            "those of the model; or set validation.must_know: false",
        )
    return Validation(
        precision=record.precision,
        task=known.task,
        reference=expected.made_by,
        engine=record.identity,
        samples=len(samples),
        kind=kind,
        samples_sha256=samples.list_sha256,
        results=results,
        metric=task.metrics[0].name,
        lacking=task.lacking,
        agreement=agreed,
        engine_against_pytorch=engine_errors,
        graph_against_pytorch=graph_errors,
        engine_against_graph=compiler_errors,
        spots=spots,
        resized=other_sizes,
        loss_comes_from=agreement.origin_of_loss(graph_errors, compiler_errors),
        broken=tuple(broken),
        unsure=unsure_thresholds(agreed, judged, limits),
        must_be_sure=params.must_be_sure,
        spread=agreement.spread(*task.comparable(reference, compiled), task.leads_kept(reference, compiled)),
        doubt=expected.doubt,
    )


def spot_batches(sizes: Range) -> list[int]:
    """Return the smallest batch size, the largest, and an odd one between: dynamic shapes fail at these."""
    middle = (sizes.min + sizes.max) // 2
    return sorted({sizes.min, middle if middle % 2 else max(sizes.min, middle - 1), sizes.max})


def check_spot(engine: Engine, expected: Expected, compiled: Outputs, batch: int, count: int, task: Task) -> Spot:
    """Run full batches of one size, about `count` samples. A set that is too small is repeated."""
    samples = expected.samples
    chosen = np.arange(max(1, min(count, len(samples)) // batch) * batch) % len(samples)
    found = run_all(outputs_here(engine.run), samples, batch, False, f"at batch {batch}", chosen)
    against_pytorch, against_whole = (
        agreement.compare(*task.comparable({name: values[chosen] for name, values in each.items()}, found))
        for each in (expected.outputs, compiled)
    )
    metric = agreement.metric_of(task, found, samples.truth, chosen)
    return Spot(batch=batch, samples=len(chosen), errors=against_pytorch, metric=metric, drift=against_whole.relative)


def _check_sizes(engine: Engine, run_graph: Run, samples: SampleSet, task: Task) -> tuple[Resized, ...]:
    """Compare the engine with its graph at the smallest and the largest sizes of its profile, and at those that others
    are tuned for. PyTorch is not needed: the export compared the graph with PyTorch at the former."""
    checks, profile = [], engine.record.profile
    ends = (profile.at(bound) | {"batch": profile.batch.opt} for bound in ENDS)
    tuned = (each.at("opt") for each in engine.record.build.all_profiles[1:])
    for sizes in chain(ends, tuned) if profile.resizes else ():
        feeds = samples.at(sizes, profile).cycled(sizes["batch"])
        errors = agreement.compare(*task.comparable(run_graph(feeds), engine.run(feeds)))
        checks.append(Resized(sizes={axis: size for axis, size in sizes.items() if axis != "batch"}, errors=errors))
    return tuple(checks)


def _broken_elsewhere(spots: Iterable[Spot], resized: Iterable[Resized], limit: float) -> Iterator[str]:
    """Yield a sentence for each batch size that changes the outputs, and each size at which engine and graph differ."""
    for spot in spots:
        if spot.errors.nonfinite:
            yield f"at batch {spot.batch} {spot.errors.nonfinite} outputs are NaN or infinite"
        elif not spot.drift <= limit:
            yield f"at batch {spot.batch} the outputs differ by {spot.drift:.2e} from those of the full set"
    for check in resized:
        where = ", ".join(f"{axis} {size}" for axis, size in check.sizes.items())
        if check.errors.nonfinite:
            yield f"at {where} {check.errors.nonfinite} outputs are NaN or infinite"
        elif not check.errors.relative <= limit:
            yield f"at {where} the engine differs by {check.errors.relative:.2e} from the graph it was made of"
