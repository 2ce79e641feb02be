"""Build, validate and race on this machine, and answer. A node of a cluster runs this as a program, in the files that
were sent to it, and this machine for a target that ssh reaches, on which its stages of engines then run."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from enginewright.core.errors import EnginewrightError, errors_in_words
from enginewright.core.files import CONVERTED, ENGINES, MACHINE, RACE, REPORTS, VERDICT
from enginewright.core.params.all import Params
from enginewright.core.process import end_with_parent, start_dvc
from enginewright.measure.records import Verdict
from enginewright.report.evidence import Evidence, EvidencePaths, gather_findings, known_p99
from enginewright.report.verdict import caveats, verdict_on
from enginewright.targets.answer import Answer, Measured, Speed
from enginewright.targets.ray_task import this_node
from enginewright.targets.ssh import target_of_stages

SHARED = ("convert", "reference")  # with what they depend on: all that serves any machine
ERROR = "ERROR: "  # of DVC, which says so of a stage after the stage has said why
NO_REMOTE = "there is no DVC remote, from which nodes take the graphs: `dvc remote add --default NAME URL`"


def answer_here(target: str, revision: str, params: Params) -> Answer:
    """Run what is left of the pipeline, and answer. The gate is not asked: what is red is a row like any other."""
    dvc("repro", "report")
    validation, benchmark, trace = (REPORTS / name for name in ("validation", "benchmark", "trace"))
    places = EvidencePaths(ENGINES, CONVERTED, validation, benchmark, trace, RACE, MACHINE)
    findings = replace(gather_findings(params.precisions, places), failures=Verdict.read(VERDICT).failures)
    measured = []
    for entry in findings.precisions:
        validated = entry.validation
        measured.append(
            Measured(
                precision=entry.precision,
                verdict=verdict_on(findings, entry),
                why="; ".join(caveats(findings, entry)),
                speeds=_speeds(entry),
                metric=validated.metric,
                result=validated.main,
                relative_error=validated.engine_against_pytorch.relative,
            )
        )
    refused = [Measured(precision=name, verdict="not built", why=each.why) for name, each in findings.refused.items()]
    return Answer(
        target=target,
        model=params.model.source,
        node=device.node if (device := target_of_stages()) else socket.gethostname(),
        machine=findings.machine,
        revision=revision,
        date=datetime.now(timezone.utc).replace(microsecond=0),
        precisions=(*measured, *refused),
    )


def _speeds(entry: Evidence) -> tuple[Speed, ...]:
    speeds = []
    for one in entry.benchmark.throughput:
        timed = entry.latency(one.batch) if one.requests == 1 else one
        p99, rate = known_p99(timed), entry.images_per_second(one)
        slowest = timed.p99 if p99 is None else None
        speeds.append(
            Speed(
                batch=one.batch, requests=one.requests, p50=timed.p50, p99=p99, images_per_second=rate, slowest=slowest
            )
        )
    return tuple(speeds)


def dvc(*arguments: str) -> None:
    """Run DVC, showing what it says on standard error. Its reason for failing becomes the error."""
    with start_dvc(*arguments, stderr=subprocess.PIPE) as child:
        assert child.stderr
        said = []
        for line in child.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            said.append(line.strip())
    if child.returncode:
        raise EnginewrightError(f"`dvc {arguments[0]}` failed: {_reason(said)}")


def _reason(said: list[str]) -> str:
    """Return what the stage said before DVC's own error, or else that error. Advice and warnings follow it."""
    lines = [line for line in said if line]
    place = next((number for number, line in enumerate(lines) if line.startswith(ERROR)), len(lines) - 1)
    if not lines:
        return "it gives no reason"
    if "no remote specified" in lines[place]:
        return NO_REMOTE
    by_stage = place and lines[place].startswith(f"{ERROR}failed to reproduce")
    return lines[place - 1 if by_stage else place].removeprefix(ERROR)


def versions() -> dict[str, str]:
    """Return what a node must have as the machine that asks: what it would make graphs and outputs with. Its processor
    may be another one, and the code is sent to it."""
    return {name: version for name, version in this_node().items() if name not in ("Enginewright", "the processor")}


def require_same_versions(asking: Mapping[str, str]) -> None:
    """Refuse to answer with other versions: engines of another graph would stand on the same page. A library that only
    one of the two has, such as TensorRT, makes no graphs."""
    here = versions()
    if unlike := [
        f"{name} {here[name]}, not {asked}" for name, asked in asking.items() if here.get(name, asked) != asked
    ]:
        raise EnginewrightError(f"this node has {'; '.join(unlike)}: set it up from the same requirements.lock")


def main() -> None:
    end_with_parent()
    target, revision, asking, answer = sys.argv[1:]  # as node.py gives them
    with errors_in_words():
        if target_of_stages():  # what it is made of is in the cache here
            dvc("checkout", "--allow-missing")
        else:
            require_same_versions(json.loads(asking))
            dvc("pull", "--with-deps", *SHARED)
        answer_here(target, revision, Params.read()).write(Path(answer))


if __name__ == "__main__":
    main()
