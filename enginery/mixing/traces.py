"""Find how long each block takes in both engines, on this machine or by traces from another."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginery.cluster.ray_cluster import whole_node
from enginery.core.errors import EngineryError
from enginery.core.params.mix import MixParams
from enginery.core.user_files import user_file
from enginery.engine.machine import Machine
from enginery.engine.record import EngineRecord, LayerTime
from enginery.mixing.blocks import share_named, times_of_blocks
from enginery.mixing.here import Here
from enginery.mixing.ways import Way
from enginery.speed.layer_times import time_layers
from enginery.speed.machine_lock import whole_machine
from enginery.speed.records import Trace

# Engines are traced in turns of a few calls, so that all meet the same moments of a noisy machine. In three turns of 48
# calls, as many as a single trace has, two traces of one engine named 21 and 9 layers that int8 slows down.
TURNS, CALLS = 15, 4
FEWEST_TURNS, LONG = 5, 10.0  # seconds for an engine, after which no turn follows: long calls are less noisy
MOSTLY = 0.5  # of the blocks must have a layer in a trace


LayersTimes = NDArray[np.float64]  # the milliseconds of each layer of an engine, a row for each turn


class BlocksTimes(NamedTuple):
    """The milliseconds of each block, by one trace of each engine."""

    in_int8: list[float]
    in_floating: list[float]


def require_executed(engine: EngineRecord, precision: str) -> None:
    """Refuse to mix a precision that this machine does not execute."""
    if not engine.runs_its_precision:
        raise EngineryError(
            f"mix.{precision}: {engine.precision} ran as {engine.ran_as} here, and only what the machine executes can "
            "be mixed: set floating to another precision"
        )


def median_times(times: Sequence[BlocksTimes]) -> BlocksTimes:
    return BlocksTimes(*([median(each) for each in zip(*side, strict=True)] for side in zip(*times, strict=True)))


class Traces(NamedTuple):
    machine: Machine  # that they are from
    times: list[BlocksTimes]


def trace_or_read(
    params: MixParams,
    precision: str,
    int8: Path,
    floating: Path,
    places: Mapping[str, int],
    data: Path,
    here: Here,
) -> Traces:
    """Trace both engines here, or read the traces that the parameters name."""
    if params.traces:
        return read_traces(params.traces, params.floating, precision, places, data, here.batch, here.machine.runtime)
    with whole_node(f"mix, {precision}"), whole_machine(f"mix, {precision}"):
        return Traces(here.machine, trace_in_turns(int8, floating, places, here))


def trace_in_turns(int8: Path, floating: Path, places: Mapping[str, int], here: Here) -> list[BlocksTimes]:
    engines = int8, floating
    turns = _in_turns(engines, here)
    for engine, of_one in zip(engines, zip(*turns, strict=True), strict=True):
        _require_times(list(chain(*of_one)), places, str(engine))
    return [BlocksTimes(*(times_of_blocks(layers, places) for layers in both)) for both in turns]


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
    """Return what the parts of a mix take by the traces of both engines, without its changes of type."""
    return np.array(
        [[each.in_floating[n] if n in way else each.in_int8[n] for n in range(len(each.in_int8))] for each in times]
    )


def read_traces(
    folder: str, floating: str, precision: str, places: Mapping[str, int], data: Path, batch: int, runtime: str
) -> Traces:
    """Read the traces of another machine: its reports/trace. The graph is made for this runtime."""
    found = user_file(folder, data, f"mix.{precision}.traces", "null")
    traces = {name: Trace.read(found / f"{name}.json") for name in ("int8", floating)}
    for name, trace in traces.items():
        if (trace.precision, trace.batch) != (name, batch):
            raise EngineryError(
                f"{found / name}.json is a trace of {trace.precision} at batch {trace.batch}, and not of {name} at "
                f"batch {batch}: take it there with the same build.profile"
            )
    one, other = (trace.machine for trace in traces.values())
    if one != other:
        raise EngineryError(
            f"{found}: int8.json is from {one.in_words()}, and {floating}.json from {other.in_words()}: take both on "
            "one machine"
        )
    if one.runtime != runtime:
        raise EngineryError(
            f"{found}: the traces are from {one.in_words()}, and graphs are made for {runtime} here: take traces with "
            "the same runtime"
        )
    for name, trace in traces.items():
        _require_times(trace.layers, places, f"{found / name}.json")
    return Traces(one, [BlocksTimes(*(times_of_blocks(trace.layers, places) for trace in traces.values()))])


def _require_times(layers: Sequence[LayerTime], places: Mapping[str, int], where: str) -> None:
    if not any(layer.milliseconds for layer in layers):
        raise EngineryError(f"{where}: the runtime gives no times of layers, by which parts are chosen")
    if (share := share_named(layers, places)) < MOSTLY:
        raise EngineryError(
            f"{where} is a trace of another graph: {share:.0%} of this one's parts have a layer in it. Trace this model"
        )
