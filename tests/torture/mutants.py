"""Change the code that judges, a line at a time, and see that a test fails: what no test notices may be wrong unseen.

`python tests/torture/mutants.py --mutants 250 --seed 1` draws mutants among all that can be made of the SUBJECTS,
runs the tests of each one's room in a copy of the project, and lists the survivors. It fails if one of them is not in
survivors.txt, which says why no test can tell it from the code.
"""

import argparse
import ast
import contextlib
import hashlib
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUBJECTS = {  # code, and the tests that are run in turn until one notices: the module's own go before them
    "enginewright/data/feeds.py": ("tests/measure/test_agreement.py", "tests/measure", "tests/tasks"),
    "enginewright/measure/*.py": ("tests/measure", "tests/tasks", "tests/report/test_notes.py"),
    "enginewright/nightly/*.py": ("tests/nightly", "tests/cli/test_cured_pipeline.py"),
    "enginewright/tasks/average_precision.py": ("tests/tasks",),
    "enginewright/tasks/boxes.py": ("tests/tasks",),
    "enginewright/report/verdict.py": ("tests/report",),
    "enginewright/pipeline/report.py": ("tests/stages",),
    "enginewright/precision/calibration/*.py": ("tests/precision/calibration", "tests/precision"),
    "enginewright/precision/search.py": ("tests/precision/search", "tests/tasks"),
    "enginewright/precision/checks.py": ("tests/precision/search", "tests/tasks"),
}
SLOW = "tests/tasks/test_pipeline.py"  # runs whole pipelines
EXPLAINED = Path(__file__).with_name("survivors.txt")
LONGEST = 900  # seconds of a room's tests; a mutant that never ends is noticed by that
ATTEMPTS = 3  # on a machine that is so busy that a test fails without a mutant, too
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "isfinite": "isnan", "True": "False", "False": "True"}


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    before: str
    after: str
    node: int  # the number of the node in the tree, and of what stands in its place
    turn: int

    @property
    def code(self) -> str:
        tree = ast.parse((ROOT / self.file).read_text())
        there = next(each for at, each in enumerate(ast.walk(tree)) if at == self.node)
        _replace(tree, there, _turned(there)[self.turn])
        return ast.unparse(ast.fix_missing_locations(tree))

    def __str__(self) -> str:
        return f"{self.file}: {self.before} -> {self.after}"


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Make every mutant of a file: one with each of its comparisons, sums, numbers and conditions turned."""
    tree = ast.parse(file.read_text())
    skipped = {id(node) for each in ast.walk(tree) for node in _not_behaviour(each)}
    for position, node in enumerate(ast.walk(tree)):
        for turn, other in enumerate(_turned(node) if id(node) not in skipped else []):
            before, after = (ast.unparse(each).split("\n")[0] for each in (node, ast.fix_missing_locations(other)))
            name = file.relative_to(ROOT).as_posix()
            yield Mutant(name, node.lineno, node.col_offset, before, after, position, turn)


def _not_behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what lies in annotations and decorators, which tell types and options."""
    for field in ("annotation", "returns", "decorator_list"):
        told = getattr(node, field, None)
        for each in told if isinstance(told, list) else [told]:
            if each is not None:
                yield from ast.walk(each)


def _turned(node: ast.AST) -> list[ast.AST]:
    """Return what may stand in this node's place."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARED:
            return [ast.Compare(node.left, [COMPARED[type(operator)]()], node.comparators)]
        case ast.BoolOp():
            return [ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)]
        case ast.UnaryOp(op=ast.Not()):
            return [node.operand]
        case ast.If() | ast.IfExp():
            return [type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)]
        case ast.BinOp() if type(node.op) in COMPUTED:
            return [ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)]
        case ast.Constant(value=bool()):
            return [ast.Constant(not node.value)]
        case ast.Constant(value=int() | float()):
            return [ast.Constant(node.value + 1)]
        case ast.Name(ctx=ast.Load()) if node.id in NAMES:
            return [ast.Name(NAMES[node.id], ast.Load())]
        case ast.Attribute(ctx=ast.Load()) if node.attr in NAMES:
            return [ast.Attribute(node.value, NAMES[node.attr], ast.Load())]
        case ast.Raise() | ast.Continue():
            return [ast.Pass()]
    return []


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, ast.copy_location(new, old))
            elif isinstance(value, list) and any(each is old for each in value):
                setattr(parent, field, [ast.copy_location(new, old) if each is old else each for each in value])


def is_noticed(mutant: Mutant, root: Path, steps: list[str]) -> bool:
    """Tell whether a test fails, or takes too long, because of this mutant in the copy of the project at `root`."""
    for tests in steps:
        require_passing(root, tests)
        if _fails_because_of(mutant, root, tests):
            return True
    return False


def _fails_because_of(mutant: Mutant, root: Path, tests: str) -> bool:
    """Tell whether a test fails twice with the mutant, and not without it: a busy machine fails tests, too."""
    for _ in range(ATTEMPTS):
        with _in_place(mutant, root):
            failed = first_failure(root, tests)
            if not failed:
                return False
            again = first_failure(root, failed)
        if again and not first_failure(root, failed):
            return True
        print(f"{failed} fails now and then; tried again with {mutant}", flush=True)
    return False


@contextlib.contextmanager
def _in_place(mutant: Mutant, root: Path) -> Iterator[None]:
    file = root / mutant.file
    original = file.read_text()
    file.write_text(mutant.code)
    try:
        yield
    finally:
        file.write_text(original)


@cache
def require_passing(root: Path, tests: str) -> None:
    """Stop if these tests fail again and again without a mutant: every mutant would seem to be noticed."""
    for _ in range(ATTEMPTS):
        if not (failed := first_failure(root, tests)):
            return
        print(f"without a mutant, {failed} fails", flush=True)
    raise RuntimeError(f"{tests} fails in a copy of the project without a mutant")


def first_failure(root: Path, tests: str) -> str:
    """Run tests until one fails, and return which it is, or nothing."""
    with tempfile.TemporaryFile() as begun:  # the name of each test, before it runs
        child = os.fork()
        if child == 0:
            _run_tests(root, tests, begun.fileno())
        if _ends(child) == 0:
            return ""
        begun.seek(0)
        return begun.read().decode().rpartition("\n")[2] or tests


def _run_tests(root: Path, tests: str, begun: int) -> None:
    """Run tests in this process, which is a child that has the libraries already, and end it."""
    os.setsid()
    os.chdir(root)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1), os.dup2(silent, 2)
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = str(root)
    import pytest

    class Names:
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            os.write(begun, f"\n{nodeid}".encode())

    own = f"--basetemp={root.parent / 'tests'}"  # or others who run tests may remove it
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--ignore={SLOW}", own)
    status = 1
    with contextlib.suppress(BaseException):
        status = int(pytest.main([*options, tests], plugins=[Names()]))
    os._exit(status)


def _ends(child: int) -> int:
    """Wait for a child, and end it and what it started when it takes too long."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        status = -1
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status == -1:
        os.waitpid(child, 0)
    return status


def _copy(folder: Path) -> Path:
    """Copy the project's files, as git lists them."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    for name in filter(None, files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def _work(drawn: "list[tuple[Mutant, list[str]]]", results: "multiprocessing.Queue[tuple[Mutant, object]]") -> None:
    for library in ("torch", "torchvision", "numpy", "onnx", "onnxruntime", "openvino", "pandas", "pydantic", "pytest"):
        __import__(library)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # where the lock of races lies: others are not waited for
        root = _copy(Path(folder, "project"))
        for mutant, steps in drawn:
            try:
                results.put((mutant, is_noticed(mutant, root, steps)))
            except RuntimeError as error:
                results.put((mutant, error))


def _next(results: Any, workers: list[multiprocessing.Process]) -> tuple[Mutant, object]:
    """Wait for a result as long as no worker crashed."""
    while True:
        with contextlib.suppress(queue.Empty):
            found: tuple[Mutant, object] = results.get(timeout=1)
            return found
        if any(worker.exitcode for worker in workers):
            sys.exit("a worker ended with an error, which stands above")


def draw(count: int, seed: int, subject: str, named: str) -> list[tuple[Mutant, list[str]]]:
    """Draw mutants. A change of one module leaves those that are drawn of the others."""
    possible = [
        (mutant, _steps(file, tests))
        for pattern, tests in SUBJECTS.items()
        for file in sorted(ROOT.glob(pattern))
        if subject in file.as_posix()
        for mutant in mutants_of(file)
        if not named or f"{mutant} (line {mutant.line})" in named
    ]
    print(f"{len(possible)} mutants can be made; {min(count, len(possible))} are drawn", flush=True)
    possible.sort(key=lambda one: hashlib.sha256(f"{seed} {one[0]} {one[0].column}".encode()).digest())
    return possible[:count]


def _steps(file: Path, tests: tuple[str, ...]) -> list[str]:
    own = Path("tests", *file.relative_to(ROOT).parts[1 if file.parts[-2] != "stages" else 0 : -1], f"test_{file.name}")
    return list(dict.fromkeys([*([own.as_posix()] if (ROOT / own).is_file() else []), *tests]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--subject", default="", help="only files whose path holds this")
    parser.add_argument("--named", type=Path, help="only mutants that this file names, as an earlier run printed them")
    asked = parser.parse_args()
    drawn = draw(asked.mutants, asked.seed, asked.subject, asked.named.read_text() if asked.named else "")
    results: multiprocessing.Queue[tuple[Mutant, object]] = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=_work, args=(drawn[at :: asked.workers], results), daemon=True)
        for at in range(asked.workers)
    ]
    for worker in workers:
        worker.start()
    explained = EXPLAINED.read_text().splitlines()
    survivors, unexplained = 0, 0
    for done in range(1, len(drawn) + 1):
        mutant, noticed = _next(results, workers)
        if isinstance(noticed, RuntimeError):
            sys.exit(str(noticed))
        if not noticed:
            survivors += 1
            unexplained += not any(line.startswith(f"{mutant}: ") for line in explained)
            print(f"survived: {mutant} (line {mutant.line})", flush=True)
        if done % 25 == 0:
            print(f"{done} of {len(drawn)}: {survivors} survived", flush=True)
    print(f"{len(drawn)} mutants, {survivors} survivors, {unexplained} of them not explained in {EXPLAINED.name}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
