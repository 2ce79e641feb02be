"""Build, validate and race on this machine, and answer. For a target elsewhere, this is run as a program, in a copy of
the project whose stages of engines run there."""

import socket
import subprocess
import sys
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
from enginewright.targets.ssh import target_of_stages

ERROR = "ERROR: "  # of DVC, which says so of a stage after the stage has said why


def answer_here(target: str, revision: str, params: Params) -> Answer:
    """Run what is left of the pipeline, and answer. The gate is not asked: what is red is a row like any other."""
    dvc("repro", "report")
    validation, benchmark, trace = (REPORTS / name for name in ("validation", "benchmark", "trace"))
    places = EvidencePaths(ENGINES, CONVERTED, validation, benchmark, trace, RACE, MACHINE)
    findings = replace(gather_findings(params.precisions, places), failures=Verdict.read(VERDICT).failures)
    measured = [
        Measured(
            precision=entry.precision,
            verdict=verdict_on(findings, entry),
            why="; ".join(caveats(findings, entry)),
            speeds=_speeds(entry),
            metric=entry.validation.metric,
            result=entry.validation.main,
            relative_error=entry.validation.engine_against_pytorch.relative,
        )
        for entry in findings.precisions
    ]
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
    by_stage = place and lines[place].startswith(f"{ERROR}failed to reproduce")
    return lines[place - 1 if by_stage else place].removeprefix(ERROR)


def main() -> None:
    end_with_parent()
    target, revision, answer = sys.argv[1:]
    with errors_in_words():
        dvc("checkout", "--allow-missing")  # what serves any machine is in the cache
        answer_here(target, revision, Params.read()).write(Path(answer))


if __name__ == "__main__":
    main()
