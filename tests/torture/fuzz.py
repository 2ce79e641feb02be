"""Change each kind of file that is read, at random, and see that nothing worse than a sentence comes of it.

`make torture` runs this: `python tests/torture/fuzz.py --count 145`, which changes each kind of file 145 times.
Each case runs in a forked child with limits of memory and time. A table at the end says how they ended. What was found
so is in found.py, and is tried each time, too.
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # as in enginewright/__init__.py

from torture import handed_on, kinds  # noqa: E402
from torture.forked import CRASH, HANG, OUTSIDE, SENTENCE, TOLD, TRACEBACK, WORKED, Ended, run  # noqa: E402
from torture.found import FOUND  # noqa: E402
from torture.kinds import Kind  # noqa: E402

MEMORY, SECONDS = 2 << 30, 10
FAULTS = (TRACEBACK, HANG, CRASH, OUTSIDE)
LIGHT = (
    "numpy.lib.format", "PIL.Image", "PIL.PngImagePlugin", "PIL.JpegImagePlugin", "PIL.TiffImagePlugin",
    "PIL.WebPImagePlugin",
    "ruamel.yaml", "tokenizers", "enginewright.core.params.all", "enginewright.data.splits",
    "enginewright.precision.calibration.cache", "enginewright.measure.history",
    "enginewright.precision.search", "enginewright.pipeline.recovery",
)  # fmt: skip
HEAVY = (
    "torch", "onnx", "onnxruntime", "onnxsim", "polygraphy.backend.onnx", "openvino", "enginewright.engine.engine",
    "enginewright.engine.runtimes.openvino", "enginewright.model.source_model", "enginewright.model.checkpoint",
    "enginewright.model.export", "enginewright.graph.passes", "enginewright.graph.simplify",
)  # fmt: skip


class Fuzz:
    """One case after the other, each in a fresh copy of a small project."""

    def __init__(self, folder: Path, seed: int, light: bool = False) -> None:
        self.seed, self.project, self.case = seed, folder / "project", folder / "case"
        self.groups = [(LIGHT, kinds.light_kinds), (LIGHT, handed_on.light_kinds), (HEAVY, kinds.heavy_kinds),
                       (HEAVY, handed_on.heavy_kinds)][: 2 if light else 4]  # fmt: skip

    def kinds(self) -> Iterator[Kind]:
        """Yield kinds of files, after importing what reads them: none of these modules starts a thread, and those that
        no large library reads come first, as a fork of a small process is fast."""
        for modules, make_kinds in self.groups:
            for name in modules:
                import_module(name)
            found = make_kinds(self.project)
            gc.freeze()
            yield from found

    def content(self, kind: Kind, number: int) -> bytes:
        random = Random(zlib.crc32(f"{self.seed} {kind.name} {number}".encode()))
        return random.choice(kind.changes)(random.choice(kind.examples), random)

    def try_one(self, kind: Kind, content: bytes) -> Ended:
        shutil.rmtree(self.case, ignore_errors=True)
        shutil.copytree(self.project, self.case)
        file = self.case / kind.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

        def work() -> None:
            os.chdir(self.case)
            tempfile.tempdir = str(self.case)
            kind.read()

        return run(work, self.case, MEMORY, SECONDS)


def fuzz(folder: Path, seed: int, count: int, light: bool, only: str) -> tuple[dict[str, Counter[str]], list[str]]:
    """Return how the cases of each kind ended, and what was wrong."""
    trial = Fuzz(folder, seed, light)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    faults: list[str] = []
    for kind in trial.kinds():
        if only and kind.name not in only.split(";"):
            continue
        began = time.monotonic()
        known = [(content, may) for name, content, may in FOUND if name == kind.name]
        for content, may_end in [*((whole, (WORKED,)) for whole in kind.examples), *known]:
            ended = trial.try_one(kind, content)
            if ended.how not in may_end:
                faults.append(f"{kind.name} with {content[:60]!r}: {ended.how}: {ended.said}")
                print(faults[-1], flush=True)
        for number in range(count):
            ended = trial.try_one(kind, trial.content(kind, number))
            found[kind.name][ended.how] += 1
            if ended.how in FAULTS:
                faults.append(f"{kind.name} {number}: {ended.how}: {ended.said}")
                if len(faults) <= 400:
                    print(faults[-1], flush=True)
        print(f"{kind.name}: {dict(found[kind.name])}, {time.monotonic() - began:.0f} s", flush=True)
    return found, faults


def table(found: dict[str, Counter[str]]) -> str:
    columns = (WORKED, SENTENCE, TOLD, *FAULTS)
    rows = [(name, *(counts[column] for column in columns)) for name, counts in found.items()]
    rows.append(("all", *(sum(counts[column] for counts in found.values()) for column in columns)))
    lines = [f"| file | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=145, help="of each kind of file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--light", action="store_true", help="only files that no large library reads")
    parser.add_argument("--only", default="", help="kinds of files, with semicolons between")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        found, faults = fuzz(Path(folder), chosen.seed, chosen.count, chosen.light, chosen.only)
    print(
        f"\nseed {chosen.seed}, {sum(sum(each.values()) for each in found.values())} files:\n{table(found)}", flush=True
    )
    print(f"{len(faults)} faults", file=sys.stderr, flush=True)
    os._exit(min(1, len(faults)))  # at once: libraries report leaks at an ordinary end


if __name__ == "__main__":
    main()
