"""Runs with made-up measurements."""

import pytest

from enginewright.measure.records import Contention, MachinePace, Measurement, Measurements
from support.results import accuracy as of_accuracy
from support.results import benchmark_of, errors_of, latency_of, ratio_of, validation_of

BATCHES = (1, 8)


@pytest.fixture(scope="session")
def run(machine):
    """Make up a run of one precision from its ratios to PyTorch and anything else that a test asks for."""

    def make(
        *ratios,
        precision="int8",
        interval=0.01,
        took=(1.0, 1.0),  # how many times as long PyTorch itself took
        accuracy=0.95,
        relative=0.01,
        as_asked=1.0,
        samples=512,
        digest="a",  # of their list
        engine="the engine's identity",
        files=None,
        threads=2,
        pace=5.0,
        others=0.0,
        gpu=None,
        pytorch="2.15.0",
        **of_machine,
    ):
        validation = validation_of(
            precision,
            errors_of(relative),
            engine=engine,
            samples=samples,
            samples_sha256=digest,
            **of_accuracy(0.96, accuracy, accuracy),
        )
        benchmark = benchmark_of(
            precision,
            (latency_of("eager", batch, 2.0 * batch * times) for batch, times in zip(BATCHES, took, strict=True)),
            (
                ratio_of(batch, ratio, ratio * (1 - interval), ratio * (1 + interval))
                for batch, ratio in zip(BATCHES, ratios, strict=True)
            ),
            threads=threads,
            pace=MachinePace(microseconds=pace, rounds=40, set_aside=0),
            contention=Contention(cores=2, others=others, stolen=0.0, throttled=0.0),
            gpu=gpu,
            pytorch=pytorch,
        )
        measured = Measurement(
            precision=precision,
            engine_bytes=1,
            files=files or {},
            executed_as_asked=as_asked,
            validation=validation,
            benchmark=benchmark,
        )
        return Measurements(machine=machine.model_copy(update=of_machine), precisions=(measured,))

    return make
