"""A `python3` that begins with PyTorch and others imported, as each stage would spend most of its seconds on that.

This file is also the program of the process that imports them. It forks for each `python3 -m MODULE ...`.
"""

import gc
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from importlib import import_module, invalidate_caches
from pathlib import Path
from select import select

IMPORTED = (
    "torchvision", "torch.onnx", "modelopt.onnx.autocast", "modelopt.onnx.quantization", "modelopt.onnx.trt_utils",
    "onnxsim", "onnxscript", "onnxruntime", "openvino.tools.ovc", "sympy", "lief", "pandas", "matplotlib.pyplot",
    "sklearn.datasets",
)  # fmt: skip
CLIENT = """#!{python} -IS
import json, os, socket, sys

if sys.argv[1:2] != ["-m"]:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect("{address}")
    socket.send_fds(server, [b"+"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(8) or 70))
"""


def warm_python() -> Path:
    """Return the folder to put before others on the PATH."""
    return _start()[0]


@cache
def _start() -> tuple[Path, subprocess.Popen[bytes]]:
    """Start the process that forks. It ends where its standard input does: with this process."""
    folder = Path(tempfile.mkdtemp())
    address, client = folder / "socket", folder / "python3"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    command = [sys.executable, "-P", __file__, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return folder, process


def serve(folder: Path) -> None:
    """Fork for each request until standard input ends."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        listening.listen()
        print("ready", flush=True)
        while sys.stdin not in select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                run(connection, str(folder / "python3"))
            connection.close()
    shutil.rmtree(folder)
    os._exit(0)  # at once: libraries report leaks at an ordinary end


def run(connection: socket.socket, client: str) -> None:
    """Run the module as a new Python would, tell the client its exit code, and end this process."""
    code = 1
    try:
        code = _run_module(connection, client)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    connection.sendall(str(code).encode())
    os._exit(code)


def _run_module(connection: socket.socket, client: str) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    for target, given in enumerate(streams):
        os.dup2(given, target)
        os.close(given)
    sys.stdout, sys.stderr = (open(stream, "w", closefd=False) for stream in (1, 2))  # noqa: SIM115
    with connection.makefile() as request:
        (_, _, module, *arguments), folder, environment = json.load(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable, tempfile.tempdir = client, None
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    invalidate_caches()
    if "SIMULATED_TENSORRT" in environment:
        import sitecustomize  # noqa: F401  # as Python does when it starts
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
