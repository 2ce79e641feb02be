"""A `python3` that begins with PyTorch and others imported, as each stage would spend most of its seconds on that.

`dvc`, `enginewright` and `polygraphy` beside it begin so, too. This file is also the program of the process that
imports all this. It forks for each command, and serves all workers of pytest.
"""

import ctypes
import gc
import json
import marshal
import os
import pickle
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from select import select
from types import ModuleType
from typing import TextIO

from filelock import FileLock

IMPORTED = (
    "torchvision", "torch.onnx", "torch._inductor.compile_fx", "modelopt.onnx.autocast", "modelopt.onnx.quantization",
    "modelopt.onnx.trt_utils", "onnxsim", "onnxscript", "onnxruntime", "openvino.tools.ovc", "sympy", "lief", "pandas",
    "sklearn.datasets", "polygraphy.tools", "polygraphy.backend.onnxrt", "networkx", "pygit2", "dulwich.client",
    "dvc.cli.parser", "dvc.repo.reproduce", "dvc.repo.graph", "dvc.repo.experiments", "dvc.repo.plots", "dvc.rwlock",
    "dvc.scm", "dvc.lock", "dvc.utils.strictyaml", "dvc.repo.index", "dvc.repo.open_repo", "dvc.data_cloud",
    "dulwich.worktree", "dulwich.index", "configobj", "pyparsing", "pydantic.main", "ruamel.yaml",
    "_ruamel_yaml", "jinja2",
)  # fmt: skip
PROGRAMS = {"python3": (), "python": (), "dvc": ("-m", "dvc"), "enginewright": ("-m", "enginewright.cli")}
PROGRAMS |= {"polygraphy": ("-c", "from polygraphy.tools import main; raise SystemExit(main())")}
CLIENT = """#!{python} -IS
import _socket, marshal, posix, sys  # what is built in: other modules take twice as long as a bare Python

arguments = [*{before}, *sys.argv[1:]]
if not arguments or arguments[0][0] == "-" and arguments[0] not in ("-m", "-c"):
    posix.execv("{python}", ["{python}", *arguments])
server = _socket.socket(_socket.AF_UNIX)
server.connect("{address}")
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
server.sendmsg([b"+"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(marshal.dumps([arguments, posix.getcwd(), posix.environ, posix.getppid()]))
server.shutdown(_socket.SHUT_WR)
sys.exit(int(server.recv(8) or 70))
"""
GIVEN = "ENGINEWRIGHT_WARM_PYTHON"
ROOT = Path(__file__).parents[2]
TEMPORARY = tempfile.gettempdir()  # a test may put another in its place


@cache
def warm_python() -> Path:
    """Return the folder to put before others on the PATH. Who was started by a program of it has the same one, whatever
    its own temporary folder."""
    if (given := Path(os.environ.get(GIVEN, ""))).is_absolute() and given.exists():
        return given
    run, owner = os.environ.get("PYTEST_XDIST_TESTRUNUID"), os.getppid()
    if run is None:
        run, owner = str(os.getpid()), os.getpid()
    folder = Path(TEMPORARY, f"warm-python-{run}")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _start(folder, owner)
    os.environ[GIVEN] = str(folder)
    return folder


def _start(folder: Path, owner: int) -> None:
    """Start the process that forks. It ends when its owner does: the pytest that started the workers."""
    folder.mkdir()
    if find_spec("torch") is None:  # a light installation has little to import, and no DVC
        (folder / "enginewright").write_text(f'#!/bin/sh\nexec {sys.executable} -m enginewright.cli "$@"\n')
        (folder / "enginewright").chmod(0o755)
        return
    for name, before in PROGRAMS.items():
        (folder / name).write_text(CLIENT.format(python=sys.executable, before=before, address=folder / "socket"))
        (folder / name).chmod(0o755)
    command = [sys.executable, "-P", __file__, str(folder), str(owner)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    started = subprocess.Popen(command, **pipes, start_new_session=True)
    with started.stdout as said:
        is_ready = b"ready\n" in said  # after what a library says once on a new machine: that it looks for fonts
    started.returncode = 0  # nobody waits for it
    if not is_ready:
        shutil.rmtree(folder)
        raise RuntimeError(f"{shlex.join(command)} ended before it was ready: run it to see why")


def serve(folder: Path, owner: int) -> None:
    """Fork for each request, as long as the owner runs."""
    sys.modules["openvino_telemetry"] = None  # as in enginewright/__init__.py
    gc.disable()  # searches for garbage are a quarter of the time that imports take
    sys.path.insert(0, str(ROOT))
    files = (path for path in sorted((ROOT / "enginewright").rglob("*.py")) if path.stem != "__main__")
    ours = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files)
    for name in (*IMPORTED, *ours):
        import_module(name)
    sys.path.remove(str(ROOT))
    what_is_imported()  # now, as a process that looks at each module copies 10,000 pages of memory
    gc.enable()
    gc.collect()
    _let_dvc_spend_less_on_yaml()
    let_pytorch_read_its_operators_once()
    gc.freeze()
    lie_in_large_pages()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        listening.listen()
        print("ready", flush=True)
        while Path(f"/proc/{owner}").exists():
            if not select([listening], [], [], 1)[0]:
                continue
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                run(connection, folder)
            connection.close()
    shutil.rmtree(folder)
    Path(f"{folder}.lock").unlink()
    os._exit(0)  # at once: libraries report leaks at an ordinary end


def _let_dvc_spend_less_on_yaml() -> None:
    """Read each text once: DVC parses params.yaml again for each stage, several times. Write dvc.lock, which has no
    comments, as JSON, and read it so. DVC does both in pure Python, a hundred times as slowly and for each stage. What
    is written means the same: YAML contains JSON."""
    module = import_module("dvc.utils.serialize._yaml")
    read, read_for_update, write = module.parse_yaml, module.parse_yaml_for_update, module._dump

    @cache
    def known(text: str, path: str) -> bytes:
        with suppress(ValueError):  # of any other YAML
            return pickle.dumps(json.loads(text))
        return pickle.dumps(read(text, path))

    def parse(text: str, path: str, typ: str = "safe") -> object:
        return pickle.loads(known(text, path)) if typ == "safe" else read(text, path, typ)

    def parse_for_update(text: str, path: str) -> object:
        return (parse if os.path.basename(path) == "dvc.lock" else read_for_update)(text, path)

    def dump(data: object, stream: TextIO) -> None:
        if isinstance(data, dict) and "schema" in data:
            return json.dump(data, stream, indent=1)
        return write(data, stream)

    module.parse_yaml, module.parse_yaml_for_update, module._dump = parse, parse_for_update, dump


def lie_in_large_pages() -> None:
    """Let the kernel put this process's memory together, 2 MB to a page. For each fork it copies a list of all pages,
    and gives it up at the end: of small ones that takes as long as all else that a short command does."""
    madvise = ctypes.CDLL(None).madvise
    for mapped in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, file = mapped.split()
        if rights == "rw-p" and file in ("0", "[heap]"):
            start, end = (int(each, 16) for each in place.split("-"))
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 25)  # MADV_COLLAPSE; what fails stays small


def let_pytorch_read_its_operators_once() -> None:
    """Keep the list of operators that PyTorch translates to ONNX. For each export it reads the source of 500 functions
    again, which takes as long as all else that it does for a small network."""
    import_module("torch.ao.quantization.fx._decomposed")  # has operators that are known only where it was imported
    registry = import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    registry.from_torchlib(opset_version=20)  # that of params.yaml


def run(connection: socket.socket, folder: Path) -> None:
    """Run the program as a new Python would, tell the client its exit code, and end this process."""
    code = 1
    try:
        _run_program(connection, folder)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with suppress(OSError):  # its client has the code of a child that this one has outlived
        connection.sendall(str(code).encode())
    os._exit(code)


def _run_program(connection: socket.socket, client: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    for target, given in enumerate(streams):
        os.dup2(given, target)
        os.close(given)
    with connection.makefile("rb") as request:
        (what, *arguments), folder, environment, parent = marshal.load(request)
    _seem_started_by(parent)
    os.chdir(folder)
    os.environ.clear()
    os.environb.update(environment)
    environment = dict(os.environ)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # colorama, which DVC imports, has put others there
    for stream in (sys.stdout, sys.stderr):
        encoding = environment.get("PYTHONIOENCODING", stream.encoding)
        stream.reconfigure(encoding=encoding, errors=stream.errors, line_buffering=stream.isatty())
    sys.executable, tempfile.tempdir = str(client / "python3"), None
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    added = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    _forget_modules_that_stand_in(added)
    sys.path[:0] = added
    invalidate_caches()
    if any(Path(each, "sitecustomize.py").exists() for each in added[1:]):
        import sitecustomize  # noqa: F401  # as Python does when it starts

        if gpu := sys.modules.get("enginewright.engine.gpu"):  # it may let another module stand in for this one
            gpu.pynvml = import_module("pynvml")
    sys.argv = arguments
    if what == "-m":
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    main = ModuleType("__main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main  # by the second name processes send back its objects
    if what == "-c":
        sys.argv, code = ["-c", *arguments[1:]], compile(arguments[0], "<string>", "exec")
    else:
        sys.argv, sys.path[0] = [what, *arguments], os.path.dirname(os.path.abspath(what))
        main.__file__, code = what, compile(Path(what).read_bytes(), what, "exec")
    exec(code, vars(main))


def _seem_started_by(parent: int) -> None:
    """Let this process, but none that it forks, take its client's parent for its own."""
    here, ask = os.getpid(), os.getppid
    os.getppid = lambda: parent if os.getpid() == here else ask()


def _forget_modules_that_stand_in(folders: list[str]) -> None:
    """Let a module in these folders be imported in place of the imported one of its name, as in a new Python."""
    known, imported, ours = what_is_imported()

    def is_a_copy(file: Path) -> bool:
        return file.parts[-2:] == ("enginewright", "__init__.py") and written(file.parent) == ours

    files = [file for folder in folders for way in ("*.py", "*/__init__.py") for file in Path(folder).glob(way)]
    others = [file for file in files if str(file) not in known and not is_a_copy(file)]
    names = imported & {file.parent.name if file.stem == "__init__" else file.stem for file in others}
    names |= {"enginewright"} if names else set()  # whose modules have imported the others
    for name in [name for name in sys.modules if name.partition(".")[0] in names] if names else []:
        del sys.modules[name]


@cache
def what_is_imported() -> tuple[set[str], set[str], dict[str, tuple[int, int]]]:
    """Return the file of each module that is imported, the first part of each one's name, and what `enginewright` has:
    a copy of that needs no import of its own."""
    files = {file for module in sys.modules.values() if (file := getattr(module, "__file__", None))}
    return files, {name.partition(".")[0] for name in sys.modules}, written(ROOT / "enginewright")


def written(package: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of each file of a package, which a copy has, too."""
    found = ((folder, name) for folder, _, names in os.walk(package) if "__pycache__" not in folder for name in names)
    paths = [os.path.join(folder, name) for folder, name in found]
    return {os.path.relpath(path, package): (it.st_size, it.st_mtime_ns) for path in paths for it in [os.stat(path)]}


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
