"""Run the whole pipeline, the bundle and its example where there is no network, and see that nothing asks for one.

`make torture` runs this: `python tests/torture/offline.py`. Linux gives the processes a network namespace of their own
that has no interface, not even the loopback one. What needs a network fails there, and strace is not needed to see it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.committed_project import tortured_project

ALONE = ["unshare", "--map-root-user", "--net"]
COMMANDS = (
    ["make", "repro"],
    ["enginewright", "doctor"],
    ["enginewright", "inspect", "artifacts/engines/fp32"],
    ["enginewright", "bundle", "fp32"],
    ["python3", "verify.py"],
    ["python3", "infer.py", "image.png"],
)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    reached = subprocess.run([*ALONE, "true"], capture_output=True, text=True)
    if reached.returncode:
        sys.exit(f"this system gives no network namespace: {reached.stderr.strip()}")
    with tempfile.TemporaryDirectory(prefix="offline-") as folder:
        root = tortured_project(Path(folder) / "project", "LICENSE")  # which goes into bundles
        home = root.parent / "home"  # without what was once downloaded
        home.mkdir()
        environment = os.environ | {"HOME": str(home), "PYTHONPATH": str(root), "GIT_CONFIG_GLOBAL": os.devnull}
        for name in ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME"):
            environment.pop(name, None)
        environment["PATH"] = f"{root / '.venv/bin'}{os.pathsep}{environment['PATH']}"
        for command in COMMANDS:
            where = next((root / "bundles").glob("*"), root) if command[0] == "python3" else root
            if command[-1] == "image.png":
                _image(where / "image.png")
            done = subprocess.run(
                [*ALONE, *command], cwd=where, env=environment, capture_output=True, text=True, timeout=1800
            )
            print(f"{'works' if done.returncode == 0 else 'fails'} without a network: {' '.join(command)}", flush=True)
            if done.returncode:
                sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def _image(path: Path) -> None:
    from PIL import Image

    Image.new("L", (8, 8), 100).save(path)


if __name__ == "__main__":
    main()
