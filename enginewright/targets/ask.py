"""Ask all targets of a fleet, keep what they answer, and read it again for the page."""

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.files import ARTIFACTS, CURES, ENGINES, LOCK, REPORTS, new_folder, sha256_of, write_text
from enginewright.core.installing import NAME, revision
from enginewright.core.params.all import Content, Params, edit_params
from enginewright.core.params.build import ON_CPU, ONNXRUNTIME, ClusterParams
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.process import TARGET, cache_of_dvc, how_it_ended
from enginewright.core.text import last_line
from enginewright.targets.answer import NOT_YET, Answer, Answers, UsersCode
from enginewright.targets.file import FLEET, Fleet, Target
from enginewright.targets.here import answer_here, dvc
from enginewright.targets.ray_cluster import RayCluster, connected
from enginewright.targets.ssh import describe, made_ready, reached


def ask_fleet(fleet: Fleet, params: Params, users_code: UsersCode) -> list[str]:
    """Ask this machine first, with nothing beside it, then all others at once. Return those that failed."""
    failures = []
    try:
        for answer in _asked(fleet, params):
            if answer.failed:
                _say(f"{answer.target} failed: {answer.failed}")
                failures.append(answer)
            else:  # it is written at once: this process may be killed
                _say(f"{answer.target} answered, on {answer.node}")
                Answers.about(params, users_code).keep(answer)
    finally:  # at last, since the run may have made other samples than there were when the first one failed
        for failure in failures:
            Answers.about(params, users_code).keep(failure)
    return [failure.target for failure in failures]


def known_answers(fleet: Fleet) -> dict[str, list[Answer]]:
    """Return the answers that there are by model, in the order of the fleet. A target without one has a row, too."""
    found = {}
    for kept in Answers.of_all_models():
        there = {target.name: kept.of(target.name) for target in fleet.targets}
        if model := next((answer.model for answer in there.values() if answer), None):
            why = f"{NOT_YET}: `enginewright fleet --target {{}}` asks it"
            found[f"{model} ({kept.folder.name[-8:]})"] = [
                there[one.name] or Answer(target=one.name, model=model, failed=why.format(one.name))
                for one in fleet.targets
            ]
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _asked(fleet: Fleet, params: Params) -> Iterator[Answer]:
    """Yield the answers, and without figures those of targets that failed."""
    commit, elsewhere = revision(), [target for target in fleet.targets if target.ray or target.ssh]

    def failing(targets: Sequence[Target], why: str) -> Iterator[Answer]:
        yield from (Answer(target=target.name, model=params.model.source, failed=why) for target in targets)

    if commit.endswith("-dirty"):
        yield from failing(elsewhere, "it gets the last commit, and files differ from it: commit first (`git status`)")
        elsewhere = []
    for target in fleet.targets:
        if not target.ray and not target.ssh:
            yield _answer_or_why_not(target, params, partial(answer_here, target.name, commit, params))
    try:
        copy = _packed(commit, params) if elsewhere else None
    except EnginewrightError as error:
        yield from failing(elsewhere, str(error))
        return
    with ExitStack() as opened:
        if fleet.cluster and (on_nodes := [target for target in elsewhere if target.ray]):
            try:
                opened.enter_context(connected(ClusterParams(address=fleet.cluster)))
            except EnginewrightError as error:
                yield from failing(on_nodes, str(error).replace("cluster.address", f"the cluster in {FLEET}"))
                elsewhere = [target for target in elsewhere if not target.ray]
        pool = opened.enter_context(ThreadPoolExecutor())
        asks = {target: partial(ask_elsewhere, target, fleet.cluster, params, copy) for target in elsewhere if copy}
        asked = [pool.submit(_answer_or_why_not, target, params, ask) for target, ask in asks.items()]
        yield from (done.result() for done in as_completed(asked))


def _answer_or_why_not(target: Target, params: Params, ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except Exception as error:
        if sentence := sentence_of(error):
            return Answer(target=target.name, model=params.model.source, failed=sentence)
        raise


# Ask a target elsewhere: in a copy of the project here, whose stages of engines run there.


class Copy(NamedTuple):
    """A commit, as it is laid out for each target in a folder of its own."""

    name: str
    revision: str
    commit: bytes  # an archive of the whole repository
    within: str  # where the project is in it
    files: Mapping[str, bytes]  # of the project, which differ from the commit

    def lay_out(self, root: Path) -> Path:
        """Return the project's folder. What was made for it is in the cache of this project."""
        shutil.rmtree(root, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(self.commit)) as archive:
            archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # which Python has since 3.11.4
            archive.extractall(root)
        for name, content in self.files.items():
            (root / self.within / name).write_bytes(content)
        subprocess.run(["git", "init", "--quiet", str(root)], check=True, capture_output=True)
        return root / self.within


def ask_elsewhere(target: Target, cluster: str | None, params: Params, copy: Copy) -> Answer:
    with _held(target, cluster) as held, reached(held) as (device, looked):
        _say(f"{target.name}: {looked.in_words}")
        device = made_ready(device, looked, copy.name)
        machine, of_onnxruntime = describe(device, params.runtime)
        baseline = ONNXRUNTIME if of_onnxruntime == machine.device else ON_CPU
        root = user_cache_path(NAME) / "fleet" / copy.name / target.name
        project, log = copy._replace(files={**copy.files, **_same_cache()}).lay_out(root), root / "fleet.log"
        edit_params(partial(_stay_there, baseline), str(PARAMS_FILE), project / PARAMS_FILE)
        _say(f"{target.name}: {machine.in_words()}; more in {log}")
        cures = _cures_in(project)
        program = [sys.executable, "-m", "enginewright.targets.here", target.name, copy.revision, "answer.json"]
        environment = os.environ | {"PYTHONPATH": str(project), TARGET: device.model_dump_json()}
        with log.open("w", encoding="utf-8") as file:
            done = subprocess.run(program, cwd=project, env=environment, stdout=file, stderr=subprocess.STDOUT)
    if done.returncode:
        last = last_line(log.read_text(encoding="utf-8", errors="replace")) or how_it_ended(-done.returncode)
        raise EnginewrightError(f"{last} (more in {log})")
    for folder in (ENGINES, REPORTS):
        with new_folder(ARTIFACTS / "fleet" / target.name / folder.name) as unfinished:
            shutil.copytree(project / folder, unfinished, dirs_exist_ok=True)
    for name, content in _cures_in(project).items() - cures.items():
        write_text(kept := CURES / f"{target.name}.{name}", content)
        _say(f"{target.name}: {kept} cures an engine there: commit it, and ask again")
    return Answer.parse((project / "answer.json").read_bytes(), f"the answer of {target.name}")


def _cures_in(project: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (project / CURES).glob("*.json")}


@contextmanager
def _held(target: Target, address: str | None) -> Iterator[Target]:
    """Find the node of a Ray cluster that has the resource, the first one by its address, and let no other work of the
    cluster run there. It is reached by ssh, too."""
    if not target.ray:
        yield target
        return
    import ray

    cluster = RayCluster(ray, ClusterParams(address=address, resource=target.ray))
    cluster.require_nodes()
    node = min(cluster.nodes(), key=lambda one: (str(one["NodeManagerAddress"]), str(one["NodeID"])))
    with cluster.whole_node(target.name, node):
        yield target.model_copy(update={"ssh": target.ssh or node["NodeManagerAddress"]})


def _same_cache() -> dict[str, bytes]:
    """Return the setting by which a copy of the project has the cache of this one."""
    home = next(each for each in (Path.cwd(), *Path.cwd().parents) if (each / ".dvc").is_dir())
    setting = f'[cache]\n    dir = {cache_of_dvc()}\n    type = "reflink,hardlink,copy"\n'
    return {os.path.relpath(home / ".dvc" / "config.local"): setting.encode()}


def _packed(commit: str, params: Params) -> Copy:
    """Make what serves any machine, and return the last commit with the locks that tell of it. A mix serves one."""
    if unknown := _git("ls-files", "--others", "--exclude-standard", str(Path("data").resolve())).decode().splitlines():
        raise EnginewrightError(
            f"targets get the last commit, and {unknown[0]} is not in it: `git add` or `dvc add` it, and commit"
        )
    dvc("repro", "reference", *(f"convert@{name}" for name in params.precisions if name not in params.mix))
    root = Path(_git("rev-parse", "--show-toplevel").decode().strip())
    within = _git("rev-parse", "--show-prefix").decode().strip()
    name = f"{root.name}-{sha256_of([socket.gethostname(), str(Path.cwd())])[:8]}"
    locks = {str(lock): lock.read_bytes() for lock in (LOCK, "machine" / LOCK)}  # they may be newer than the commit
    return Copy(name, commit, _git("-C", str(root), "archive", "HEAD"), within, locks)


def _stay_there(baseline: str, params: Content) -> None:
    """Let the stages of a target stay on it, and race this baseline."""
    if params.get("cluster"):
        params["cluster"]["address"] = None
    params.setdefault("benchmark", {})["baselines"] = [baseline]


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], capture_output=True)
    if done.returncode:
        raise EnginewrightError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
