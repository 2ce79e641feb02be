"""docs/reference/messages.md and the sources: it quotes messages as they are, and helps with those that cannot."""

import ast
import re
from functools import cache
from itertools import pairwise

from support.paths import ROOT

SOURCES = sorted(path for room in ("enginewright", "stages", "tools") for path in ROOT.glob(f"{room}/**/*.py"))
DOCUMENT = (ROOT / "docs/reference/messages.md").read_text()
WRITTEN_OUT = [*ROOT.glob("enginewright/bundle/templates/**/*.j2"), *ROOT.glob(".ci/*")]  # no Python, or not yet
RAISED = (
    "EnginewrightError",
    "ValueError",
    "bad_source",
    "_mistake",
    "at_line",
    "ArgumentTypeError",
    "parser.error",
    "sys.exit",
)
TOLD = ("_tell_unless_plain",)  # a note, before a reason
PUT_IN = re.compile(r"\{\{.*?\}\}|\{.*?\}")
VARIES = "…"


def template(node: ast.expr) -> str:
    """The text of a string in the source, with … for what is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else VARIES for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else VARIES


def normal(text: str) -> str:
    return " ".join(text.replace("`", "").replace("\\|", "|").split())


def strings(wanted):
    return {
        normal(template(node)): f"{path.relative_to(ROOT)}, line {node.lineno}"
        for path in SOURCES
        for parent in ast.walk(parsed(path))
        for node in wanted(parent)
    }


@cache
def parsed(path):
    """The source, in which the errors of samples say in full what they begin with."""
    tree = ast.parse(path.read_text())
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and name_of(call.func) == "bad_source":
            written = call.args[0]
            parts = written.values if isinstance(written, ast.JoinedStr) else [written]
            call.args = [ast.copy_location(ast.JoinedStr([ast.Constant("samples.source: "), *parts]), written)]
            ast.fix_missing_locations(call)
    return tree


def name_of(node):
    """Return what `ast.unparse` says of a name, and of one behind a dot, but not in a second for all of the sources."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def messages_of(parent):
    """The sentences that a user reads: the last argument of what makes an error, and what is printed beside results."""
    if not isinstance(parent, ast.Call):
        return []
    printed = any(name_of(keyword.value) == "sys.stderr" for keyword in parent.keywords)
    return parent.args[-1:] if printed or name_of(parent.func) in (*RAISED, *TOLD) else []


def written_out():
    return {
        normal(PUT_IN.sub(VARIES, message)): str(path.relative_to(ROOT))
        for path in WRITTEN_OUT
        for message in re.findall(r"""(?:sys\.exit\(f?|echo )"(.+?)"(?:\)| >&2)""", path.read_text())
    }


def any_string(parent):
    return [parent] if isinstance(parent, ast.JoinedStr | ast.Constant) else []


def words(text: str) -> list[str]:
    return [part.strip() for part in text.split(VARIES) if re.search(r"\w", part)]


def is_sentence(message: str) -> bool:
    """Not only the name of the stage before another one."""
    return any(" " in part for part in words(message))


@cache
def known_messages():
    found = strings(messages_of) | written_out()
    return {message: where for message, where in found.items() if is_sentence(message)}


CURES = re.findall(r"(?m)^\| (?!message \|)(.+?) \|(.*)\|$", DOCUMENT)
ROWS = [normal(message) for messages, _ in CURES for message in messages.split("<br>")]  # of several, one cure


def tells(row: str, message: str) -> bool:
    """The words of the message stand in the row in their order, and nothing else does but …"""
    return words(row) == words(message)


def test_there_are_messages_and_rows():
    assert len(known_messages()) > 150
    assert len(ROWS) > 100
    assert tells("… holds no parameters", "… holds no parameters")
    assert not tells("… holds no parameters", "… holds no images")


def test_messages_that_end_in_the_words_of_another_program_are_explained():
    """All others say themselves what to do."""
    where = known_messages()
    foreign = [message for message in where if message.endswith(f": {VARIES}")]
    assert len(foreign) > 20
    assert [
        f"{message} ({where[message]})" for message in foreign if not any(tells(row, message) for row in ROWS)
    ] == []


def test_no_row_tells_of_a_message_that_is_gone():
    known = {tuple(words(text)) for text in strings(any_string) | written_out()}
    assert [row for row in ROWS if tuple(words(row)) not in known] == []


def test_each_message_is_told_once():
    told = sorted(tuple(words(row)) for row in ROWS)
    assert [row for row, following in pairwise(told) if row == following] == []


def test_each_row_has_a_cure():
    assert [messages for messages, cure in CURES if not cure.strip()] == []


def test_a_cure_of_a_single_message_says_more_than_that_the_reason_follows():
    alone = [(message, cure.strip(" .")) for message, cure in CURES if "<br>" not in message]
    assert [message for message, cure in alone if re.fullmatch(r"(\S+ ){1,3}(follows?|is in parentheses)", cure)] == []
