"""Name this machine and its tools, and resolve the runtime."""

from pathlib import Path

from enginery.core.params import load_params
from enginery.core.stage import run_stage
from enginery.machine import describe_machine, describe_tools


def machine(machine: Path, tools: Path) -> None:
    """Write machine.json, which engines and timings depend on, and tools.json, which graphs depend on."""
    described = describe_machine(load_params().runtime)
    described.write(machine)
    describe_tools().write(tools)
    print(f"{described.runtime} {described.runtime_version} on {described.device_name}, {described.cores} cores")


if __name__ == "__main__":
    run_stage(machine)
