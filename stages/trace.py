"""Time each layer of one engine, apart from the benchmark, because timing layers slows an engine."""

from pathlib import Path

from enginewright.core.params.build import InferenceParams
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import Machine
from enginewright.engine.record import pass_on_refusal
from enginewright.measure.speed_records import trace_engine
from enginewright.measure.timing import whole_machine
from enginewright.targets.ray_cluster import whole_node


def trace(precision: str, engine: Path, validation: Path, machine: Path, report: Path) -> None:
    """Write the trace of one precision."""
    if pass_on_refusal(engine, report):
        return
    here = Machine.read(machine)
    inference, samples = InferenceParams.read().on(here.cores), SampleSet.open(validation)
    with whole_node(f"trace, {precision}"), whole_machine(f"trace, {precision}"):
        record = trace_engine(engine, here, inference, samples)
    record.write(report)
    if not record.layers:
        print(f"{precision}: {here.runtime} gives no times of layers")
        return
    slowest = max(record.layers, key=lambda layer: layer.milliseconds)
    print(
        f"{precision}: {len(record.layers)} layers take {record.milliseconds:.3f} ms at batch {record.batch}; "
        f"the slowest, {slowest.name}, takes {slowest.milliseconds:.3f} ms"
    )
