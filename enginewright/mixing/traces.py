"""Find how long each block takes in the engine of each type, on this machine or by traces from another."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.cluster.ray_cluster import whole_node
from enginewright.core.errors import EnginewrightError
from enginewright.core.precisions import PrecisionName
from enginewright.core.user_files import user_file
from enginewright.engine.machine import Machine
from enginewright.engine.record import EngineRecord, LayerTime
from enginewright.mixing.blocks import share_named, times_of_blocks
from enginewright.mixing.here import Here
from enginewright.mixing.ways import BlocksTimes, Way
from enginewright.speed.layer_times import time_layers
from enginewright.speed.machine_lock import whole_machine
from enginewright.speed.records import Trace

# Engines are traced in turns of a few calls, so that all meet the same moments of a noisy machine. In three turns of 48
# calls, as many as a single trace has, two traces of one engine named 21 and 9 layers that int8 slows down.
TURNS, CALLS = 15, 4
FEWEST_TURNS, LONG = 5, 10.0  # seconds for an engine, after which no turn follows: long calls are less noisy
MOSTLY = 0.5  # of the blocks must have a layer in a trace


LayersTimes = NDArray[np.float64]  # the milliseconds of each layer of an engine, a row for each turn


def require_executed(engine: EngineRecord, precision: str) -> None:
    """Refuse to mix a precision that this machine does not execute."""
    if not engine.runs_its_precision:
        raise EnginewrightError(
            f"mix.{precision}: {engine.precision} ran as {engine.ran_as} here, and only what the machine executes can "
            "be mixed: set floating to another precision"
        )


def median_times(times: Sequence[BlocksTimes]) -> BlocksTimes:
    return {name: [median(each) for each in zip(*(turn[name] for turn in times), strict=True)] for name in times[0]}


class Traces(NamedTuple):
    machine: Machine  # that they are from
    times: list[BlocksTimes]  # by one trace of each engine

    @property
    def types(self) -> tuple[PrecisionName, ...]:
        return tuple(self.times[0])


def trace_in_turns(
    precision: str, engines: Mapping[PrecisionName, Path], places: Mapping[str, int], here: Here
) -> Traces:
    """Trace the engines of all types here."""
    with whole_node(f"mix, {precision}"), whole_machine(f"mix, {precision}"):
        turns = _in_turns(list(engines.values()), here)
    for engine, of_one in zip(engines.values(), zip(*turns, strict=True), strict=True):
        _require_times(list(chain(*of_one)), places, str(engine))
    times = [[times_of_blocks(layers, places) for layers in turn] for turn in turns]
    return Traces(here.machine, [dict(zip(engines, turn, strict=True)) for turn in times])


def layers_in_turns(engines: Sequence[Path], here: Here) -> list[LayersTimes]:
    """Return the milliseconds of the layers of each engine. A mix is traced by itself, since the times of its parts do
    not tell what its changes of type cost."""
    of_each = zip(*_in_turns(engines, here), strict=True)
    return [np.array([[layer.milliseconds for layer in layers] for layers in of_one]) for of_one in of_each]


def _in_turns(engines: Sequence[Path], here: Here) -> list[list[list[LayerTime]]]:
    """Return the layers of each engine, turn by turn."""
    turns: list[list[list[LayerTime]]] = []
    began = monotonic()
    while len(turns) < FEWEST_TURNS or (len(turns) < TURNS and monotonic() - began < LONG * len(engines)):
        turns.append([time_layers(engine, here.machine, here.inference, here.samples, CALLS) for engine in engines])
    return turns


def layers_on_way(way: Way, times: Sequence[BlocksTimes]) -> LayersTimes:
    """Return what the parts of a mix take by the traces of all engines, without its changes of type."""
    return np.array([[turn[name][number] for number, name in enumerate(way)] for turn in times])


def read_traces(
    folder: str,
    types: Sequence[PrecisionName],
    precision: str,
    places: Mapping[str, int],
    data: Path,
    here: Here,
) -> Traces:
    """Read the traces of another machine: its reports/trace. The first two types must be there, others may be."""
    found = user_file(folder, data, f"mix.{precision}.traces", "null")
    paths = {name: found / f"{name}.json" for name in types}
    traces = {name: Trace.read(path) for name, path in paths.items() if name in types[:2] or path.exists()}
    for name, trace in traces.items():
        if (trace.precision, trace.batch) != (name, here.batch):
            raise EnginewrightError(
                f"{paths[name]} is a trace of {trace.precision} at batch {trace.batch}, and not of {name} at "
                f"batch {here.batch}: take it there with the same build.profile"
            )
    machine = traces["int8"].machine
    for name, trace in traces.items():
        if trace.machine != machine:
            raise EnginewrightError(
                f"{found}: int8.json is from {machine.in_words()}, and {name}.json from {trace.machine.in_words()}: "
                "take all on one machine"
            )
    if machine.runtime != here.machine.runtime:
        raise EnginewrightError(
            f"{found}: the traces are from {machine.in_words()}, and graphs are made for {here.machine.runtime} here: "
            "take traces with the same runtime"
        )
    for name, trace in traces.items():
        _require_times(trace.layers, places, str(paths[name]))
    return Traces(machine, [{name: times_of_blocks(trace.layers, places) for name, trace in traces.items()}])


def _require_times(layers: Sequence[LayerTime], places: Mapping[str, int], where: str) -> None:
    if not any(layer.milliseconds for layer in layers):
        raise EnginewrightError(f"{where}: the runtime gives no times of layers, by which parts are chosen")
    if (share := share_named(layers, places)) < MOSTLY:
        raise EnginewrightError(
            f"{where} is a trace of another graph: {share:.0%} of this one's parts have a layer in it. Trace this model"
        )
