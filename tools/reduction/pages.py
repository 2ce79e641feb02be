"""Write what is sent beside a graph: the script that shows the fault by itself, and what was used."""

import importlib.metadata
import platform
from pathlib import Path

import onnx

from enginewright.core.facts import RUNTIMES
from enginewright.core.templates import templates_in
from enginewright.core.version import installed_version
from enginewright.engine.machine import Target
from tools.reduction.trial import CURED_GRAPH, DIFFERS, GRAPH, REFUSED, SCRIPT, UNCOMPARED, Fault

WHAT = {"differs": "results differ from ONNX's definition", "refused": "a valid graph is refused"}
TEMPLATES = templates_in(Path(__file__).parent)


def write_script(target: Target, limit: float, headline: str, cured: bool) -> str:
    facts = RUNTIMES[target.runtime]
    return TEMPLATES.get_template(f"{SCRIPT}.j2").render(
        headline=headline,
        cured=cured,
        script=SCRIPT,
        differs=DIFFERS,
        refused=REFUSED,
        uncompared=UNCOMPARED,
        model=CURED_GRAPH if cured else GRAPH,
        title=facts.title,
        runtime=target.runtime,
        limit=limit,
        compares=not facts.is_tensorrt,
        provider="CUDAExecutionProvider" if target.device == "cuda" else "CPUExecutionProvider",
        capabilities=[f"SM{each.replace('.', '')}" for each in target.capabilities] if facts.builds_without_gpu else [],
    )


def write_readme(model: onnx.ModelProto, target: Target, fault: Fault, cured: bool) -> str:
    return TEMPLATES.get_template("README.md.j2").render(
        title=f"{RUNTIMES[target.runtime].title} {target.runtime_version}",
        what=WHAT.get(fault.kind, f"it {fault.kind}"),
        message=fault.message,
        script=SCRIPT,
        cured=cured,
        nodes=model.graph.node,
        processor=" ".join(filter(None, (target.device_name or target.device, *target.capabilities))),
        system=platform.platform(),
        python=platform.python_version(),
        numpy=importlib.metadata.version("numpy"),
        reference=installed_version(*RUNTIMES["onnxruntime"].distributions),
    )
