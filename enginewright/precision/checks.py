"""Check what a graph loses on calibration samples. The validation samples stay unseen."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.data.feeds import TINY, Outputs, Places, Run, Values, cosines_of_samples, norms_of_samples
from enginewright.data.run_all import OutputsOf, outputs_here, run_all
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import run_optimized
from enginewright.graph.onnx_file import fixed_batch
from enginewright.measure.agreement import Judge, Lost, compare
from enginewright.measure.intervals import Figure, estimate
from enginewright.precision.calibration.cache import SMALL
from enginewright.precision.records import AIM, JUDGING, Step

CHOOSING = 8  # samples to measure layers by
FIRST = 32  # of the samples to check by, which are enough where very much is lost, or hardly anything
MUCH = 2.0  # times what the thresholds allow
LITTLE = AIM / 2  # of what the thresholds allow
LOST = 1e6  # times what the thresholds allow: no number, or no end
MOST = 1000  # samples to check by: a larger calibration set makes no longer search
OUTPUT_BYTES = 2**28  # the most that the outputs of all checked samples may take
CROSSED = 16  # times that each answer gets the error of another sample, where samples are few
BATCH, BATCH_BYTES = 8, 2**22  # at most: what a graph holds between its layers is many times as large as its inputs


class Checks:
    """The exact outputs, which others are compared with."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        samples: SampleSet,
        judge: Judge,
        exact_there: OutputsOf | None = None,
        most: int = MOST,
    ) -> None:
        """`exact_there` runs the graph on a cluster, where there is one."""
        self.graph, self.limits = graph, judge.limits
        self._samples, self._judge, self._exact_there = samples, judge, exact_there
        one = sum(values.nbytes for values in samples.read_at(np.arange(1)).values())
        fits = max(1, min(BATCH, BATCH_BYTES // max(one, 1)))
        self._batch = fixed_batch(graph) or 1 << (fits.bit_length() - 1)  # a power of two, of which FIRST is a multiple
        size = sum(values[0].nbytes for values in self._run_all(self.exact, None, np.arange(1)).values())
        chosen = min(CHOOSING, max(1, len(samples) // 2))
        looked_at = np.arange(max(1, min(len(samples), chosen + min(most, OUTPUT_BYTES // max(size, 1)))))
        self._outputs = self._run_all(self.exact, exact_there, looked_at)
        self._sizes = _sizes(self._outputs)
        self.picked = picked = np.unique(looked_at[_spread(self._sizes, chosen)])
        others = np.setdiff1d(looked_at, picked) if len(looked_at) > chosen else picked
        self._judging = looked_at[:JUDGING]
        first = others[_spread(self._sizes[others], FIRST)]  # which show most, as they are of all sizes
        self.places = np.concatenate([np.unique(first), np.setdiff1d(others, first)])
        self.chosen, self.checked, self.judging = chosen, len(self.places), len(self._judging)
        whole = np.resize(picked, -(-chosen // self._batch) * self._batch)
        self.batches = [samples.read_at(each) for each in whole.reshape(-1, self._batch)]  # to measure layers by
        self._expected: dict[int, Outputs] = {}
        # Texts have other exact outputs with other padding, and a class or a mask has no error that others could have.
        are_numbers = all(np.issubdtype(values.dtype, np.floating) for values in self._outputs.values())
        self._can_suppose = are_numbers and samples.lengths is None
        aimed_at = AIM * min(1 - self.limits.agreement, self.limits.metric_drop)
        self._are_few = self._can_suppose and size <= SMALL and aimed_at * self.checked < 1

    @cached_property
    def exact(self) -> Run:
        return run_optimized(self.graph)

    @cached_property
    def answers(self) -> list[Outputs]:
        """Return the exact outputs for the batches to measure layers by."""
        return [self.exact(feeds) for feeds in self.batches]

    def _run_all(self, run: Run, there: OutputsOf | None, places: Places) -> Outputs:
        label = "answers to calibration samples"
        return run_all(there or outputs_here(run), self._samples, self._batch, True, label, chosen=places)

    def _exact_at(self, places: Places) -> Outputs:
        """Return the exact outputs. Texts run with those that they are compared with, to be padded alike."""
        if self._samples.lengths is not None:
            return self._run_all(self.exact, self._exact_there, places)
        return {name: values[places] for name, values in self._outputs.items()}

    def _exact_of_first(self, count: int) -> Outputs:
        if count not in self._expected:
            self._expected[count] = self._exact_at(self.places[:count])
        return self._expected[count]

    def at_most(self, parts: Iterable[tuple[Places, Run, OutputsOf | None]]) -> float:
        """Return what as many other samples may take of the errors allowed: the upper end of the 95 % interval. Each
        part of the samples comes with what runs the graph as if it had not seen them.

        Answers are not judged so: none of 64 that changes leaves up to 5.6 %, which is more than is ever allowed.
        """
        pairs = []
        for part, run, there in parts:
            places = np.intersect1d(part, self._judging)
            if len(places):
                pairs.append(self._judge.comparable(places, self._exact_at(places), self._run_all(run, there, places)))
        if any(compare(exact, found).nonfinite for exact, found in pairs):
            return LOST
        figures = []
        for name in pairs[0][0]:
            of_parts = [(exact[name], found[name]) for exact, found in pairs]  # padded to texts of their own
            count = sum(len(exact) for exact, _ in of_parts)
            figures += [upper_end(figure, count) / allowed for figure, allowed in self._figures(of_parts)]
        return min(LOST, max(figures))

    def _figures(self, pairs: Sequence[tuple[Values, Values]]) -> Iterator[tuple[Figure, float]]:
        """Yield what an output loses by each threshold, by how often each sample is there, and what is allowed."""
        errors = np.concatenate([np.square(norms_of_samples(exact, found)) for exact, found in pairs])
        sizes = np.concatenate([np.square(norms_of_samples(exact)) for exact, _ in pairs])
        yield lambda often: np.sqrt((often @ errors) / np.maximum(often @ sizes, TINY)), self.limits.relative_error
        if pairs[0][0][:1].size > 1:  # a single number has no angle
            apart = 1 - np.concatenate([cosines_of_samples(*pair) for pair in pairs])
            yield lambda often: (often @ apart) / often.sum(axis=1), max(1 - self.limits.cosine, TINY)

    def check_run(self, run: Run, spared: int, work: float, there: OutputsOf | None = None) -> Step:
        """Say what is lost by what runs so, on a cluster `there`. A few samples show whether that is far too much, or
        hardly anything.

        Where one image in forty has another answer, 32 samples hold no such image four times in ten. So all samples
        are judged with the errors of the few. One image of few is a large share of them, so that answers cannot tell
        that too much is lost.
        """
        found = self._run_all(run, there, self.places[:FIRST])
        few = self._step(found, spared, work, min(FIRST, self.checked))
        if few.spent >= LOST or max(self._spent_by_errors(few)) >= MUCH or few.looked_at == self.checked:
            return few
        if few.spent <= LITTLE and self._can_suppose:
            supposed = self._step(self._as_if_like(found), spared, work, self.checked).spent
            if supposed <= LITTLE:
                return few.model_copy(update={"spent": max(few.spent, supposed)})
        if self._samples.lengths is None:
            others = self._run_all(run, there, self.places[FIRST:])
            whole = {name: np.concatenate([values, others[name]]) for name, values in found.items()}
        else:  # texts must be padded alike
            whole = self._run_all(run, there, self.places)
        return self._step(whole, spared, work, self.checked)

    def _as_if_like(self, found: Outputs) -> Outputs:
        """Return outputs of all samples as if each had the error of the few whose exact answer is nearest in size."""
        exact, sizes = self._exact_of_first(self.checked), self._sizes[self.places]
        few = np.argsort(sizes[:FIRST])
        between = (sizes[few][1:] + sizes[few][:-1]) / 2
        like = few[np.searchsorted(between, sizes)]
        return {name: values + (found[name] - values[:FIRST])[like] for name, values in exact.items()}

    def _step(self, found: Outputs, spared: int, work: float, count: int) -> Step:
        places, exact = self.places[:count], self._exact_of_first(count)
        errors = compare(*self._judge.comparable(places, exact, found))
        crossed = self._crossed(found, count) if self._are_few else ()
        lost = self._judge.lost(places, exact, chain([found], crossed))
        same, drop = lost[0]
        step = Step(
            spared=spared,
            work=work,
            cosine=errors.cosine,
            relative_error=errors.relative,
            agreement=None if same is None else float(same.mean()),
            metric_drop=drop,
            looked_at=count,
            spent=LOST,
        )
        spent = max(*self._spent_by_errors(step), *self._spent_by_answers(lost))
        return step if errors.nonfinite else step.model_copy(update={"spent": min(LOST, spent)})

    def _crossed(self, found: Outputs, count: int) -> Iterator[Outputs]:
        """Yield outputs as if each sample had the error of another one, whose exact answer is nearly as large.

        Of 56 samples, one is 1.8 %. So few have no other answer where 2 % of many have, or one that is chance.
        """
        exact, order = self._exact_of_first(count), np.argsort(self._sizes[self.places[:count]], kind="stable")
        for shift in range(1, min(CROSSED, count - 1) + 1):
            like = np.empty_like(order)
            like[order] = np.roll(order, shift)
            yield {name: values + (found[name] - values)[like] for name, values in exact.items()}

    def _spent_by_errors(self, step: Step) -> tuple[float, float]:
        allowed = self.limits
        return (1 - step.cosine) / max(1 - allowed.cosine, TINY), step.relative_error / allowed.relative_error

    def _spent_by_answers(self, lost: Sequence[Lost]) -> tuple[float, float]:
        others = np.mean([0.0 if each.same is None else 1 - each.same.mean() for each in lost])
        drop = np.mean([each.drop or 0.0 for each in lost])
        allowed = self.limits
        return float(others) / max(1 - allowed.agreement, TINY), max(float(drop), 0.0) / max(allowed.metric_drop, TINY)


def upper_end(figure: Figure, samples: int) -> float:
    """Return how large the figure may be on as many other samples, which vary as much as those that were seen."""
    found = estimate(figure, samples)
    return found.value + math.sqrt(2) * (found.at(samples).high - found.value)


def _spread(sizes: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return so many places, from that of the smallest number to that of the largest."""
    order = np.argsort(sizes, kind="stable")
    return np.asarray(order[np.linspace(0, len(order) - 1, count).round().astype(int)])


def _sizes(outputs: Outputs) -> NDArray[np.float64]:
    """Return how large the answers to each sample are, as shares of the usual size. They are rounded, so that the last
    bits, which the number of threads decides, choose nothing."""
    sizes = map(norms_of_samples, outputs.values())
    return np.asarray(np.sum([np.round(each / max(each.mean(), TINY), 3) for each in sizes], axis=0))
