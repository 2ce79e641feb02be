"""Ask all targets of a fleet, keep what they answer, and read it again for the page."""

import sys
from collections.abc import Iterator

from enginewright.core.errors import sentence_of
from enginewright.core.params.all import Params
from enginewright.fleet.answer import NOT_YET, Answer, Answers
from enginewright.fleet.file import Fleet, Here, OnNode, OnRunner, Target
from enginewright.fleet.here import answer_here
from enginewright.regression.nightly.pipeline import revision


def ask_fleet(fleet: Fleet) -> list[str]:
    """Ask this machine first, with nothing beside it, and then all nodes at once. Runners answer by themselves. Return
    the names of the targets that failed. Those that cannot be asked are told before."""
    params, commit = Params.read(), revision()
    for target in fleet.targets:
        if isinstance(target, OnRunner):
            print(
                f"{target.name} is not asked from here: {_its_job(target)}, and ask again for the page",
                file=sys.stderr,
                flush=True,
            )
    failed = {}
    for target, answer in _asked(fleet, commit):  # whatever is known is written at once: this process may be killed
        if isinstance(answer, Answer):
            print(f"{target.name} answered, on {answer.node}", file=sys.stderr, flush=True)
            Answers.about(params).keep(answer)
        else:
            print(f"{target.name} failed: {answer}", file=sys.stderr, flush=True)
            failure, about = Answer.without_figures(target.name, params, answer), Answers.about(params)
            failed[target.name] = failure, about, about.of(target.name)
            about.keep(failure)
    now = Answers.about(params)  # the run may have made other samples than those that the first failures were kept with
    for failure, about, before in failed.values():
        if about.folder != now.folder:
            about.put_back(failure.target, before)
            now.keep(failure)
    return list(failed)


def answer_as(target: OnRunner) -> bool:
    """Answer for a runner, which is this machine. Tell whether it could."""
    params = Params.read()
    answer = _try_here(target, revision())
    found = answer if isinstance(answer, Answer) else Answer.without_figures(target.name, params, answer)
    Answers.about(params).keep(found)
    return not found.failed


def known_answers(fleet: Fleet) -> dict[str, list[Answer]]:
    """Return the answers that there are by model, in the order of the fleet. A target without one has a row, too."""
    found = {}
    for kept in Answers.of_all_models():
        there = {target.name: kept.of(target.name) for target in fleet.targets}
        if model := next((answer.model for answer in there.values() if answer), None):
            missing = {one.name: Answer(target=one.name, model=model, failed=_how_to_ask(one)) for one in fleet.targets}
            found[f"{model} ({kept.folder.name[-8:]})"] = [there[name] or missing[name] for name in there]
    return found


def _asked(fleet: Fleet, commit: str) -> Iterator[tuple[Target, Answer | str]]:
    on_nodes = [target for target in fleet.targets if isinstance(target, OnNode)]
    if on_nodes and fleet.cluster:
        from enginewright.fleet.nodes import refused

        why_not = refused(on_nodes, fleet.cluster, commit)
        yield from ((target, str(error)) for target, error in why_not.items())
        on_nodes = [target for target in on_nodes if target not in why_not]
    for target in fleet.targets:
        if isinstance(target, Here):
            yield target, _try_here(target, commit)
    if on_nodes and fleet.cluster:
        from enginewright.fleet.nodes import ask_nodes

        for target, answer in ask_nodes(on_nodes, fleet.cluster, commit):
            yield target, answer if isinstance(answer, Answer) else str(answer)


def _try_here(target: Target, commit: str) -> Answer | str:
    try:
        return answer_here(target.name, commit)
    except Exception as error:
        if sentence := sentence_of(error):
            return sentence
        raise


def _how_to_ask(target: Target) -> str:
    if isinstance(target, OnRunner):
        return f"{NOT_YET}: {_its_job(target)}"
    return f"{NOT_YET}: `enginewright fleet --target {target.name}` asks it"


def _its_job(target: OnRunner) -> str:
    return f"the nightly job on the runner {target.label} commits its answer; then `git pull`"
