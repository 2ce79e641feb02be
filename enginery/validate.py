"""Three results for the same images: PyTorch's, the typed graph's, the engine's.

A quantizer's error and a compiler's error look alike from outside. The graph, run as written, tells them apart: what
lies between PyTorch and the graph is the precision's, what lies between the graph and the engine the compiler's.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginery.agreement import Logits, accuracy, broken_thresholds, compare, origin_of_loss
from enginery.bf16_twin import float32_twin, uses_bf16
from enginery.core.params import Profile, Thresholds
from enginery.core.progress import progress
from enginery.core.records import Spot, Validation
from enginery.engines import Engine
from enginery.graphs import INPUT, OUTPUT, arbiter, load_graph, run_graph
from enginery.samples import SampleSet


def validate_engine(
    engine: Engine, onnx: Path, samples: SampleSet, reference: Logits, limits: Thresholds, spot_samples: int
) -> Validation:
    precision, profile = engine.record.precision, engine.record.profile
    graph = run_all(run_as_written(onnx), samples, profile.max, f"{precision}, the graph")
    compiled = run_all(run_engine(engine), samples, profile.max, f"{precision}, the engine")
    labels = samples.labels
    wanted_accuracy, got_accuracy = accuracy(reference, labels), accuracy(compiled, labels)
    engine_errors, graph_errors = compare(reference, compiled), compare(reference, graph)
    compiler_errors = compare(graph, compiled)
    spots = tuple(
        check_spot(engine, samples, reference, compiled, batch, spot_samples) for batch in spot_batches(profile)
    )
    drop = wanted_accuracy - got_accuracy
    broken = broken_thresholds(engine_errors, drop, limits)
    for spot in spots:
        broken += broken_spot(spot, limits)
    return Validation(
        precision=precision,
        engine=engine.record.identity,
        samples=len(samples),
        reference_accuracy=wanted_accuracy,
        graph_accuracy=accuracy(graph, labels),
        engine_accuracy=got_accuracy,
        accuracy_drop=drop,
        engine_against_pytorch=engine_errors,
        graph_against_pytorch=graph_errors,
        engine_against_graph=compiler_errors,
        spots=spots,
        loss_comes_from=origin_of_loss(graph_errors, compiler_errors),
        broken=broken,
    )


def run_as_written(onnx: Path) -> Callable[[NDArray[np.float32]], Logits]:
    model = load_graph(onnx)
    session = arbiter(float32_twin(model) if uses_bf16(model) else model)
    return lambda images: run_graph(session, images)


def run_engine(engine: Engine) -> Callable[[NDArray[np.float32]], Logits]:
    """The last batch may be smaller than the engine takes: it is filled up with copies, whose logits are dropped."""
    fewest = engine.record.profile.min

    def run(images: NDArray[np.float32]) -> Logits:
        filled = np.resize(images, (max(len(images), fewest), *images.shape[1:]))
        return engine.run({INPUT: filled})[OUTPUT][: len(images)].astype(np.float32)

    return run


def run_all(run: Callable[[NDArray[np.float32]], Logits], samples: SampleSet, batch: int, label: str) -> Logits:
    total = -(-len(samples) // batch)
    return np.concatenate([run(images) for images in progress(samples.batches(batch), label, total)])


def spot_batches(profile: Profile) -> list[int]:
    """The smallest, the largest, and an odd one between: where dynamic shapes go wrong."""
    middle = (profile.min + profile.max) // 2
    return sorted({profile.min, middle if middle % 2 else max(profile.min, middle - 1), profile.max})


def check_spot(engine: Engine, samples: SampleSet, reference: Logits, compiled: Logits, batch: int, count: int) -> Spot:
    """Whole batches of just this size; a set that is too small goes round."""
    batches = max(1, min(count, len(samples)) // batch)
    chosen = np.arange(batches * batch) % len(samples)
    run = run_engine(engine)
    parts = progress(np.split(chosen, batches), f"batch {batch}", batches)
    logits = np.concatenate([run(samples.read_at(part)) for part in parts])
    return Spot(
        batch=batch,
        samples=len(chosen),
        errors=compare(reference[chosen], logits),
        accuracy=accuracy(logits, samples.labels[chosen]),
        drift=compare(compiled[chosen], logits).relative,
    )


def broken_spot(spot: Spot, limits: Thresholds) -> tuple[str, ...]:
    """A batch size must not change the answer. Accuracy is judged on the full set: these are too few images."""
    if spot.errors.nonfinite:
        return (f"at batch {spot.batch} {spot.errors.nonfinite} outputs are NaN or infinite",)
    if not spot.drift <= limits.relative_error:
        return (f"at batch {spot.batch} the logits differ by {spot.drift:.2e} from those of the full set",)
    return ()
