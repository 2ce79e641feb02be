"""Run one project in other places and under other circumstances: what does not tell times must have the same bytes.

`make torture` runs this: `python tests/torture/elsewhere.py`. Each run is a new copy with no results, whose folder,
user, language, clock or storage differ. Then the first one goes on with its results. Its report is written once more.
It moves to a machine that shows another version of the runtime, or another processor: engines are built anew there, and
nothing else is. What follows from its weights is made again on one core. What a library that is preloaded does not
reach, such as a file system that lies about what it wrote, is not tried.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ruamel.yaml import YAML
from support.committed_project import differing, results, tortured_project

from enginewright.core.files import sha256

MOUNTED = "mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec make repro"
ONLY_READS = "-all,+dac_read_search"  # the environment may lie in the home folder of another user
NOBODY = 65534
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    f"--inh-caps={ONLY_READS}", f"--ambient-caps={ONLY_READS}", f"--bounding-set={ONLY_READS}",
)  # fmt: skip
WITH_PROCESSOR = "mount --bind {} /proc/cpuinfo && exec make repro"
OTHER_VERSION, OTHER_PROCESSOR = "9.9.9", "Another Processor"
JUMP_AFTER = 25  # seconds, in the middle of a run
RAN = re.compile(r"^Running stage '([^']+)'", re.MULTILINE)
ANEW = {"machine/dvc.yaml:machine", "build", "validate", "benchmark", "race", "trace", "report", "gate"}
AGAIN = ("dvc", "repro", "--force")
Change = Callable[[Path], dict[str, str]]  # what is made anew in a folder, as variables of the environment


def preloaded(folder: Path) -> str:
    library = folder / "strange_storage.so"
    source = Path(__file__).with_name("strange_storage.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


def _home(folder: Path) -> dict[str, str]:
    (folder / "a home").mkdir()
    return {"HOME": str(folder / "a home"), "XDG_CACHE_HOME": "", "USER": "somebody", "LOGNAME": "somebody"}


CIRCUMSTANCES: dict[str, Change] = {
    "in a folder with spaces and letters of other scripts": lambda folder: {},
    "as another user, who has nothing yet": _home,
    "as a user without rights": _home,
    "in Kathmandu's time": lambda folder: {"TZ": "Asia/Kathmandu"},
    "without UTF-8": lambda folder: {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "with data that cannot be written": lambda folder: {},
    "on slow storage without links": lambda folder: {"SLOW_STORAGE": "1", "LD_PRELOAD": preloaded(folder)},
    "with a clock that jumps back by three days meanwhile": lambda folder: {
        "JUMP_AT": str(int(time.time()) + JUMP_AFTER),
        "LD_PRELOAD": preloaded(folder),
    },
}


def run(folder: Path, name: str) -> Path:
    """Make a new copy of the project and all its results."""
    root = tortured_project(folder / ("ein Ordner, папка" if "spaces" in name else "project"))
    environment = os.environ | {"PYTHONPATH": str(root)} | CIRCUMSTANCES.get(name, lambda folder: {})(folder)
    if "without rights" in name:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    finish(name, command_of(name, root), root, environment)
    return root


def finish(name: str, command: list[str], root: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"fails {name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def command_of(name: str, root: Path) -> list[str]:
    if "data that cannot" in name:  # also root cannot write there
        return ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED.format(root / "data")]
    return [*(AS_NOBODY if "without rights" in name else ()), "make", "repro"]


def moved(root: Path) -> Iterator[str]:
    """Go on with a project and its results elsewhere, and yield what is wrong."""
    environment, places = os.environ | {"PYTHONPATH": str(root)}, root.parent
    about = places / f"openvino-{OTHER_VERSION}.dist-info/METADATA"  # which Python reads in place of the installed one
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: openvino\nVersion: {OTHER_VERSION}\n")
    shown = re.sub(r"(?m)^(model name\s*: ).*", rf"\1{OTHER_PROCESSOR}", Path("/proc/cpuinfo").read_text())
    (places / "cpuinfo").write_text(shown)
    with_version = environment | {"PYTHONPATH": f"{root}{os.pathsep}{places}"}
    with_processor = ["unshare", "--map-root-user", "--mount", "sh", "-c", WITH_PROCESSOR.format(places / "cpuinfo")]
    home, wanted = targets(root), results(root)
    for name, command, given, change in (
        ("with another version of the runtime", ["make", "repro"], with_version, {"runtime_version": OTHER_VERSION}),
        ("on another processor", with_processor, environment, {"device_name": OTHER_PROCESSOR}),
        ("at home again", ["make", "repro"], environment, {}),
    ):
        ran = {stage.split("@")[0] for stage in RAN.findall(finish(name, command, root, given))}
        found, others = targets(root), differing(wanted, results(root))
        print(f"{name}: ran {', '.join(sorted(ran))}; {len(wanted) - len(others)} outputs are the same", flush=True)
        if found != {precision: target | change for precision, target in home.items()}:
            yield f"{name}: the engines are for {found}"
        if others or ran - ANEW:
            yield f"{name}: other bytes: {others}; ran: {ran - ANEW}"


def report_again(root: Path) -> Iterator[str]:
    """Write the report again from the same measurements, by a Python that orders its sets otherwise."""
    before = reported(root)
    finish("with another order", [*AGAIN, "--single-item", "report"], root, _here(root) | {"PYTHONHASHSEED": "1"})
    others = differing(before, reported(root))
    print(f"the report again: {len(before) - len(others)} outputs are the same", flush=True)
    if others:
        yield f"the report again: other bytes: {others}"


def reported(root: Path) -> dict[str, str]:
    """Return DVC's hash of each output of the report."""
    outs = YAML(typ="safe").load(root / "dvc.lock")["stages"]["report"]["outs"]
    return {out["path"]: out["md5"] for out in outs}


def on_one_core(root: Path) -> Iterator[str]:
    """Make again, with one thread, what follows from the weights. Sums of PyTorch differ in their last bits then, and
    with them the error that the export writes down; its graph does not."""
    wanted, graph = results(root), root / "artifacts/exported/model.onnx"
    exported, one = sha256(graph), ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    finish("on one core", [*one, *AGAIN, "--downstream", "export"], root, _here(root))
    others = {*differing(wanted, results(root))} - {"artifacts/exported"}
    print(f"on one core, from the same weights: {len(wanted) - len(others)} outputs are the same", flush=True)
    if others or sha256(graph) != exported:
        yield f"on one core: other bytes: {sorted(others) or graph.name}"


def _here(root: Path) -> dict[str, str]:
    path = f"{root / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": str(root), "PATH": path}


def targets(root: Path) -> dict[str, dict[str, object]]:
    """Return what each engine was built for, by precision."""
    files = (root / "artifacts/engines").glob("*/engine.json")
    return {file.parent.name: json.loads(file.read_text())["target"] for file in files}


GO_ON = {"the report again": report_again, "to another machine": moved, "on one core": on_one_core}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help=f"only what has this in its name, such as {', '.join(GO_ON)}")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as first:
        root = run(Path(first), "here")
        wanted = results(root)
        wrong = [each for name, go_on in GO_ON.items() if chosen.only in name for each in go_on(root)]
        print("\n".join(wrong), end="\n" * bool(wrong))
    failed = len(wrong)
    for name in (name for name in CIRCUMSTANCES if chosen.only in name):
        with tempfile.TemporaryDirectory(prefix="elsewhere-") as folder:
            others = differing(wanted, results(run(Path(folder), name)))
        failed += bool(others)
        print(f"{name}: {f'other bytes: {others}' if others else f'{len(wanted)} outputs are the same'}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
