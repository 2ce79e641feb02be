"""Run the example of bundles on CPUs that qemu-user pretends to be, and compare its answers with those of this CPU.

    python benchmarks/measuring/other_cpus.py bundles/resnet18-int8 --inputs digits/1.png

It needs `qemu-x86_64`, of Debian's package qemu-user. Nehalem has SSE4 alone, Sandy Bridge AVX, Haswell AVX2, and none
of them AVX-512 or VNNI. What the example says is printed. A CPU is refused with exit code 1, as int8 for VNNI must be.
The exit code is 1 if any answers are others.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HAS = {
    "Nehalem": "ssse3 sse4_1 sse4_2 popcnt",
    "SandyBridge": "ssse3 sse4_1 sse4_2 popcnt avx",
    "Haswell": "ssse3 sse4_1 sse4_2 popcnt avx f16c fma avx2 bmi1 bmi2",
}
NOT_EMULATED = ("pcid", "x2apic", "tsc-deadline", "hle", "rtm", "invpcid")  # of which qemu would warn
ALIKE = 0.02  # of what a number is, or of 1 if it is smaller: int8 of other kernels rounds otherwise


def emulated(cpu: str, folder: Path) -> list[str]:
    """Return the beginning of a command that runs on a CPU. Its /proc/cpuinfo is in `folder`, as qemu 7 shows that of
    the machine."""
    known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    known = re.sub(r"(?m)^(flags\s*: ).*", rf"\1fpu sse sse2 {HAS[cpu]}", known)
    (folder / "proc").mkdir(parents=True)
    (folder / "proc/cpuinfo").write_text(re.sub(r"(?m)^(model name\s*: ).*", rf"\1{cpu}", known), encoding="utf-8")
    return ["qemu-x86_64", "-L", str(folder), "-cpu", ",-".join((cpu, *NOT_EMULATED))]


def ran(bundle: Path, inputs: list[str], before: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, sys.executable, "infer.py", *inputs], cwd=bundle, capture_output=True, text=True)


def alike(one: str, other: str) -> bool:
    """Tell whether two answers have the same words, and numbers that differ by little."""
    if len(words := one.split()) != len(others := other.split()):
        return False
    for ours, theirs in zip(words, others, strict=True):
        try:
            near = abs(float(ours) - float(theirs)) <= ALIKE * max(1.0, abs(float(ours)))
        except ValueError:
            near = ours == theirs
        if not near:
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--inputs", nargs="*", default=[], help="of the example; its own, if it has some")
    parser.add_argument("--cpus", nargs="+", choices=HAS, default=list(HAS))
    chosen = parser.parse_args()
    if not shutil.which("qemu-x86_64"):
        sys.exit("qemu-x86_64 is missing: `apt-get install qemu-user` installs it")
    inputs = [str(Path(each).resolve()) if Path(each).exists() else each for each in chosen.inputs]
    failed = 0
    for bundle in chosen.bundles:
        here = ran(bundle, inputs, [])
        print(f"{bundle}, here:\n{here.stderr}{here.stdout}", flush=True)
        for cpu in chosen.cpus:
            with tempfile.TemporaryDirectory() as folder:
                there = ran(bundle, inputs, emulated(cpu, Path(folder)))
            is_refused = there.returncode == 1 and not there.stdout and there.stderr.count("\n") == 1
            right = is_refused or (there.returncode == 0 and alike(here.stdout, there.stdout))
            failed += not right
            said = "refused" if is_refused else "the same answers" if right else f"other answers:\n{there.stdout}"
            print(f"{bundle} on {cpu}: {said}\n{there.stderr}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
