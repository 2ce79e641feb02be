"""Race all engines against each other, and the first baseline beside them."""

from functools import partial
from pathlib import Path

import torch

from enginewright.core.facts import PRECISIONS
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.measuring import BenchmarkParams
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import Machine, differences
from enginewright.engine.record import RECORD, read_engine
from enginewright.measure.benchmark import quoted_batch
from enginewright.measure.contenders import open_baseline
from enginewright.measure.race import Open, open_contender, race_engines
from enginewright.measure.timing import ContentionWatch, contention_problems, whole_machine
from enginewright.model.checkpoint import load_model
from enginewright.targets.ray_cluster import whole_node


def race(engines: Path, simplified: Path, weights: Path, validation: Path, machine: Path, report: Path) -> None:
    """Write race.json. What lies in the folder of engines takes part, as far as this machine runs it: the report reads
    what it needs, and a precision that was dropped must not make this stage run again."""
    here, params = Machine.read(machine), BenchmarkParams.read()
    inference = InferenceParams.read().on(here.cores)
    torch.set_num_threads(inference.threads)
    found = {name: read_engine(engines / name) for name in PRECISIONS if (engines / name / RECORD).exists()}
    records = {name: record for name, record in found.items() if not differences(record.target, here)}
    record = next(iter(records.values()))
    batch, baseline = quoted_batch(params, record.build), params.baselines[0]
    feeds = SampleSet.open(validation).tuned(record.profile).cycled(batch)
    openers: dict[str, Open] = {name: partial(open_contender, engines / name, here, inference) for name in records}
    graph, load_pytorch = simplified / "model.onnx", partial(load_model, weights)
    openers[baseline] = partial(open_baseline, baseline, graph, load_pytorch, record.blueprint, inference, here.device)
    with whole_node("race"), whole_machine("race"), ContentionWatch() as watch:
        raced = race_engines(openers, baseline, feeds, batch, params, inference.threads)
    disturbed = tuple(contention_problems(watch.contention, inference.threads))
    raced.model_copy(update={"disturbed": disturbed}).write(report)
    for name in records:
        median, low, high = raced.times(name, baseline)
        print(f"{name}, batch {batch}: {median:.2f} times {baseline} ({low:.2f} to {high:.2f})")
