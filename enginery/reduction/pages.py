"""Write what is sent beside a graph: the script that shows the fault by itself, and what was used."""

import importlib.metadata
import platform
from pathlib import Path

import jinja2
import onnx

from enginery.core.runtimes import RUNTIMES
from enginery.engine.target import Target
from enginery.engine.tools import installed_version
from enginery.reduction.trial import CURED_GRAPH, DIFFERS, GRAPH, REFUSED, SCRIPT, UNCOMPARED, Fault

WHAT = {"differs": "results differ from ONNX's definition", "refused": "a valid graph is refused"}
ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def write_script(target: Target, limit: float, headline: str, cured: bool) -> str:
    facts = RUNTIMES[target.runtime]
    return ENVIRONMENT.get_template(f"{SCRIPT}.j2").render(
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
    return ENVIRONMENT.get_template("README.md.j2").render(
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
