"""Check what a graph loses on calibration samples. The validation samples stay unseen."""

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray

from enginery.accuracy.agreement import compare, errors_of_samples
from enginery.accuracy.results import metric_of
from enginery.core.params.precisions import Thresholds
from enginery.data.feeds import Outputs, Run
from enginery.data.run_all import OutputsOf, run_all
from enginery.data.sample_set import SampleSet
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.onnx_file import fixed_batch
from enginery.search.records import Step
from enginery.tasks.task import Statistics, Task

CHOOSING = 8  # samples to measure layers by
FIRST = 32  # of the samples to check by, which are enough where very much is lost
MUCH = 2.0  # times what the thresholds allow
LOST = 1e6  # times what the thresholds allow: no number, or no end
OUTPUT_BYTES = 2**28  # the most that the outputs of all checked samples may take
BATCH = 8
TINY = 1e-12
RunPlaces = Callable[[NDArray[np.int64]], Outputs]


class Checks:
    """The exact outputs, which others are compared with."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        samples: SampleSet,
        task: Task,
        limits: Thresholds,
        exact_there: OutputsOf | None = None,
    ) -> None:
        """`exact_there` runs the graph for many samples where there is a cluster."""
        self.limits, self._samples, self._task, self._truth = limits, samples, task, samples.truth
        self._exact, self._exact_there = partial(run_graph, open_as_written(graph)), exact_there
        self._batch = fixed_batch(graph) or BATCH
        chosen = min(CHOOSING, max(1, len(samples) // 2))
        places = np.arange(-(-chosen // self._batch) * self._batch) % len(samples)
        self._batches = [samples.read_at(each) for each in places.reshape(-1, self._batch)]
        self._wanted = [self._exact(feeds) for feeds in self._batches]
        size = sum(values[0].nbytes for values in self._wanted[0].values())
        self.chosen, self.checked = chosen, max(1, min(len(samples) - chosen, OUTPUT_BYTES // max(size, 1)))
        self._expected: dict[int, Outputs] = {}

    def check_run(self, run: Run, spared: int, work: float) -> Step:
        """Say what is lost by what runs so."""
        return self._check_places(partial(self._run_all, run, None), spared, work)

    def check_there(self, there: OutputsOf | None, spared: int, work: float) -> Step:
        """Say what is lost by what runs so on a cluster. The exact graph shows the shapes, which are the same."""
        return self._check_places(partial(self._run_all, self._exact, there), spared, work)

    def _check_places(self, run: RunPlaces, spared: int, work: float) -> Step:
        """Say what is lost. Few samples tell that where far too much is.

        That little is lost only many can tell. Where one image in forty has another answer, none of 32 has one in four
        networks of ten; and the few images with large answers, which decide the error of all at once, may be others.
        One image of few is a large share of them, so that answers cannot tell that too much is lost, either.
        """
        few = self._check(run, spared, work, min(FIRST, self.checked))
        is_lost = max(self._used_by_errors(few)) >= MUCH
        return few if is_lost else self._check(run, spared, work, self.checked)

    def _check(self, run: RunPlaces, spared: int, work: float, count: int) -> Step:
        places = (self.chosen + np.arange(count)) % len(self._samples)
        if count not in self._expected:
            self._expected[count] = self._run_all(self._exact, self._exact_there, places)
        wanted, found = self._expected[count], run(places)
        task = self._task.knowing(self._truth, places)
        errors, same = compare(*task.comparable(wanted, found)), task.agree(wanted, found)
        exact, got = (metric_of(self._task, outputs, self._truth, places) for outputs in (wanted, found))
        better = 1 if self._task.metrics[0].higher_is_better else -1
        step = Step(
            spared=spared,
            work=work,
            cosine=errors.cosine,
            relative_error=errors.relative,
            agreement=None if same is None else float(same.mean()),
            metric_drop=None if exact is None or got is None else better * (exact - got),
            looked_at=count,
            changed={} if same is None else self._named(_changed(same, *task.comparable(wanted, found)), places),
            used=LOST,
        )
        used = max(*self._used_by_errors(step), *self._used_by_answers(step))
        return step if errors.nonfinite else step.model_copy(update={"used": min(LOST, used)})

    def _named(self, chosen: NDArray[np.int64], places: NDArray[np.int64]) -> dict[str, int]:
        return {self._samples.manifest.samples[places[each]].name: int(each) for each in chosen}

    def _used_by_errors(self, step: Step) -> tuple[float, float]:
        allowed = self.limits
        return (1 - step.cosine) / max(1 - allowed.cosine, TINY), step.relative_error / allowed.relative_error

    def _used_by_answers(self, step: Step) -> tuple[float, float]:
        allowed, agreement = self.limits, 1.0 if step.agreement is None else step.agreement
        others = (1 - agreement) / max(1 - allowed.agreement, TINY)
        return others, max(step.metric_drop or 0.0, 0.0) / max(allowed.metric_drop, TINY)

    def _run_all(self, run: Run, there: OutputsOf | None, places: NDArray[np.int64]) -> Outputs:
        return run_all(run, self._samples, self._batch, whole=True, chosen=places, outputs=there)


def _changed(same: Statistics, wanted: Outputs, found: Outputs) -> NDArray[np.int64]:
    """Return the places of the samples whose answer is not the same, the worst first."""
    order = np.lexsort((-errors_of_samples(wanted, found), same))
    return order[same[order] < 1]
