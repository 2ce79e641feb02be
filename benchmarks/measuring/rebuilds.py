"""Build each engine of a project again and again, and see whether what it answers stays the same to the bit.

    python benchmarks/measuring/rebuilds.py --times 20

Run it in a project after `dvc repro`, whose converted graphs, target and validation samples it takes. Each build
and each run is a process of its own. The exit code is 1 if any answers differ.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ruamel.yaml import YAML

from enginewright import open_engine
from enginewright.data.sample_set import SampleSet

VALIDATION = Path("artifacts/samples/validation")


def digest_of(engine: Path, threads: int) -> str:
    """Return a digest of what the engine answers for all validation samples."""
    digest = hashlib.sha256()
    with open_engine(engine, threads) as opened:
        for feeds in SampleSet.open(VALIDATION).fed_to(opened.record.build).batches(opened.record.profile.batch.opt):
            for _, array in sorted(opened.run(feeds).items()):
                digest.update(array.tobytes())
    return digest.hexdigest()


def built_again(precision: str, threads: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder, precision)
        build = YAML(typ="safe").load(Path("dvc.yaml"))["stages"]["build"]["do"]["cmd"].replace("${key}", precision)
        _, *arguments = build.split()
        arguments[arguments.index("--engine") + 1] = str(engine)
        answer = (__file__, "--answer", engine, "--threads", str(threads))
        environment = os.environ | {"PYTHONPATH": os.getcwd()}
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        done = subprocess.run([sys.executable, *answer], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.answer:
        print(digest_of(chosen.answer, chosen.threads))
        return 0
    others = 0
    for precision in YAML(typ="safe").load(Path("params.yaml"))["precisions"]:
        seen = Counter(built_again(precision, chosen.threads) for _ in range(chosen.times))
        others += len(seen) - 1
        print(f"{precision}: {chosen.times} builds, {len(seen)} different answers", flush=True)
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
