"""Ask all targets of a fleet, keep what they answer, and read it again for the page."""

import sys
from collections.abc import Iterator

from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.installing import revision
from enginewright.core.params.all import Params
from enginewright.targets.answer import NOT_YET, Answer, Answers, UsersCode
from enginewright.targets.file import Fleet, Here, OnNode, OnRunner, Target
from enginewright.targets.here import answer_here


def ask_fleet(fleet: Fleet, params: Params, users_code: UsersCode) -> list[str]:
    """Ask this machine first, with nothing beside it, and then all nodes at once. Runners answer by themselves. Return
    the names of the targets that failed. Those that cannot be asked are told before."""
    for target in fleet.targets:
        if isinstance(target, OnRunner):
            _say(f"{target.name} is not asked from here: {_how_to_ask(target)}, and ask again for the page")
    failed = {}
    for target, answer in _asked(fleet, params):  # whatever is known is written at once: this process may be killed
        about = Answers.about(params, users_code)
        if not answer.failed:
            _say(f"{target.name} answered, on {answer.node}")
        else:
            _say(f"{target.name} failed: {answer.failed}")
            failed[target.name] = answer, about, about.of(target.name)
        about.keep(answer)
    now = Answers.about(params, users_code)  # the run may have made other samples than the first failures had
    for failure, about, before in failed.values():
        if about.folder != now.folder:
            about.put_back(failure.target, before)
            now.keep(failure)
    return list(failed)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def answer_as(target: OnRunner, params: Params, users_code: UsersCode) -> bool:
    """Answer for a runner, which is this machine. Tell whether it could."""
    answer = _try_here(target, revision(), params)
    Answers.about(params, users_code).keep(answer)
    return not answer.failed


def known_answers(fleet: Fleet) -> dict[str, list[Answer]]:
    """Return the answers that there are by model, in the order of the fleet. A target without one has a row, too."""
    found = {}
    for kept in Answers.of_all_models():
        there = {target.name: kept.of(target.name) for target in fleet.targets}
        if model := next((answer.model for answer in there.values() if answer), None):
            found[f"{model} ({kept.folder.name[-8:]})"] = [
                there[one.name] or Answer(target=one.name, model=model, failed=f"{NOT_YET}: {_how_to_ask(one)}")
                for one in fleet.targets
            ]
    return found


def _asked(fleet: Fleet, params: Params) -> Iterator[tuple[Target, Answer]]:
    """Yield the answers, and without figures those of targets that failed."""
    commit = revision()
    on_nodes = [target for target in fleet.targets if isinstance(target, OnNode)]
    if on_nodes and fleet.cluster:
        from enginewright.targets.nodes import refused

        why_not = refused(on_nodes, fleet.cluster, commit)
        yield from ((target, _failed(target, params, str(error))) for target, error in why_not.items())
        on_nodes = [target for target in on_nodes if target not in why_not]
    for target in fleet.targets:
        if isinstance(target, Here):
            yield target, _try_here(target, commit, params)
    if on_nodes and fleet.cluster:
        from enginewright.targets.nodes import ask_nodes

        for target, answer in ask_nodes(on_nodes, fleet.cluster, commit):
            yield target, _failed(target, params, str(answer)) if isinstance(answer, EnginewrightError) else answer


def _try_here(target: Target, commit: str, params: Params) -> Answer:
    try:
        return answer_here(target.name, commit, params)
    except Exception as error:
        if sentence := sentence_of(error):
            return _failed(target, params, sentence)
        raise


def _failed(target: Target, params: Params, why: str) -> Answer:
    return Answer(target=target.name, model=params.model.source, failed=why)


def _how_to_ask(target: Target) -> str:
    if isinstance(target, OnRunner):
        return f"the nightly job on the runner {target.label} commits its answer; then `git pull`"
    return f"`enginewright fleet --target {target.name}` asks it"
