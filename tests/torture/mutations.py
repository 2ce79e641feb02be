"""Change files as accidents and attackers do. Each change follows from the given random numbers alone."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (0, -1, 1, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63))
WORDS = (
    "", "null", "true", "NaN", "Infinity", "-1", "0", "1e999", "1e-400", "0x10", "9" * 30, "9" * 5000, "1.5",
    "../../../etc/passwd",
    "/etc/passwd", "..", "~", "$(touch pwned)", "; touch pwned", "<script>alert(1)</script>", "\\ud800", "\ud800",
    "\x00", "é",
    "\u202e", "a" * 100_000, "[" * 100_000, "{" * 5000, '{"a":' * 5000,
    "!!python/object/apply:os.system [touch pwned]", "&a [*a]",
    "*a", "<<: *a", "2001-13-45", "? ", "- ", ": ", "\t", '"', "'", ",", "\r", "\n\n\n", "\ufeff", "1_000", "0o7",
    "12:30:45",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 10**400, 2**64, 1e308, float("nan"), float("inf"), "", "\ud800", "\x00",
    "../../etc/passwd",
    "/etc/passwd", "<script>alert(1)</script>", "a" * 50_000, "9" * 5000, [], {}, [[]], [None], {"a": 1}, ["a", 1,
    None], [0] * 1000,
)  # fmt: skip


def of_bytes(content: bytes, random: Random) -> bytes:
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        start = random.randrange(len(found) + 1)
        end = min(len(found), start + random.choice((1, 2, 8, 64, 1024)))
        how = random.randrange(8)
        if how == 0 and found:
            found[start % len(found)] ^= 1 << random.randrange(8)
        elif how == 1:
            found[start:end] = random.randbytes(end - start)
        elif how == 2:
            del found[start:end]
        elif how == 3:
            found[start:start] = found[start:end] * random.choice((1, 2, 100))
        elif how == 4:
            size = random.choice((2, 4, 8))
            order = random.choice(("little", "big"))
            found[start : start + size] = (random.choice(NUMBERS) % 256**size).to_bytes(size, order)
        elif how == 5:
            del found[start:]
        elif how == 6:
            found[start:end] = bytes(end - start)
        else:
            found[start:start] = random.choice(WORDS).encode("utf-8", "surrogatepass")
    return bytes(found)


def of_text(content: bytes, random: Random) -> bytes:
    """Replace words and numbers, and move lines."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(random.choice((1, 1, 2))):
        lines = text.split("\n")
        line = random.randrange(len(lines))
        how = random.randrange(7)
        if how == 0:
            del lines[line]
        elif how == 1:
            lines.insert(line, lines[random.randrange(len(lines) or 1)])
        elif how == 2:
            lines[line] = random.choice(WORDS)
        elif how == 3:
            lines[line] = " " * random.choice((1, 2, 50)) + lines[line]
        else:
            words = list(re.finditer(r"[\w./-]+", lines[line]))
            if words:
                word = random.choice(words)
                lines[line] = lines[line][: word.start()] + random.choice(WORDS) + lines[line][word.end() :]
        text = "\n".join(lines)
    return text.encode("utf-8", "surrogatepass" if "\ud800" in text else "surrogateescape")


def of_json(content: bytes, random: Random) -> bytes:
    """Replace, remove or rename what is in a document, or in a line of one."""
    lines = content.decode().split("\n")
    whole = content.lstrip().startswith((b"{", b"[")) and not _is_lines(lines)
    number = random.randrange(len([line for line in lines if line.strip()]) or 1)
    document = json.loads(content if whole else lines[number])
    for _ in range(random.choice((1, 1, 2))):
        document = _changed(document, random)
    text = json.dumps(document, ensure_ascii=random.random() < 0.5, allow_nan=True)
    if random.random() < 0.05:
        text = random.choice(('{"a":' * 100_000, "[" * 100_000, "1" * 10_000, text * 2, "null", ""))
    if whole:
        return text.encode("utf-8", "surrogatepass")
    return "\n".join([*lines[:number], text, *lines[number + 1 :]]).encode("utf-8", "surrogatepass")


def _is_lines(lines: list[str]) -> bool:
    try:
        json.loads(lines[0])
    except ValueError:
        return False
    return len(lines) > 1


def _changed(document: Any, random: Random) -> Any:
    if not isinstance(document, dict | list) or not document or random.random() < 0.15:
        return random.choice(VALUES)
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key, how = random.choice(keys), random.randrange(8)
    if how == 0:
        del document[key]
    elif how == 1 and isinstance(document, dict):
        document[random.choice(WORDS)] = document.pop(key)
    elif how == 1:
        document.append(document[key])
    else:
        document[key] = _changed(document[key], random)
    return document


def of_zip(content: bytes, random: Random) -> bytes:
    """Change a file in an archive, which stays whole, or change the archive."""
    if random.random() < 0.4 or not zipfile.is_zipfile(io.BytesIO(content)):
        return of_bytes(content, random)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name, how = random.choice(list(files)), random.randrange(8)
    if how == 0:
        files[random.choice(WORDS[13:16]) + ".npy"] = files.pop(name)
    elif how == 1:
        del files[name]
    elif how == 2:
        files[name] = b"\0" * 300_000_000 if random.random() < 0.1 else b""
    else:
        files[name] = of_bytes(files[name], random)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for each, written in files.items():
            archive.writestr(each, written)
    return packed.getvalue()


def of_safetensors(content: bytes, random: Random) -> bytes:
    """Change the header, which says where each tensor lies; its length stays right."""
    size = int.from_bytes(content[:8], "little")
    header = of_json(content[8 : 8 + size], random)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def of_message(kind: Callable[[], Message]) -> Callable[[bytes, Random], bytes]:
    """Change fields of a message of Protobuf, which stays readable as one."""

    def change(content: bytes, random: Random) -> bytes:
        if random.random() < 0.2:
            return of_bytes(content, random)
        message = kind()
        message.ParseFromString(content)
        for _ in range(random.choice((1, 1, 2, 4))):
            _change_field(message, random)
        return message.SerializeToString()

    return change


def _change_field(message: Message, random: Random) -> None:
    fields = message.ListFields()
    if not fields:
        return
    weights = [8 if field.type == FieldDescriptor.TYPE_MESSAGE else 1 for field, _ in fields]
    ((field, value),) = random.choices(fields, weights)
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED:
        _change_list(field, value, random)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        message.ClearField(field.name) if random.random() < 0.1 else _change_field(value, random)
    else:
        _set(message, field, random)


def _set(message: Message, field: FieldDescriptor, random: Random) -> None:
    if random.random() < 0.1:
        message.ClearField(field.name)
        return
    try:
        setattr(message, field.name, _value(field, random))
    except (ValueError, TypeError, UnicodeEncodeError):  # a number that the field has no room for
        message.ClearField(field.name)


def _value(field: FieldDescriptor, random: Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        word = random.choice(WORDS)
        return word.encode("utf-8", "replace") if field.type == FieldDescriptor.TYPE_BYTES else word
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return random.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return random.randrange(30)
    return random.choice((*NUMBERS, 2, 3, 7, 10**6))


def _change_list(field: FieldDescriptor, values: Any, random: Random) -> None:
    place, how = random.randrange(len(values)), random.randrange(8)
    if how == 0:
        del values[place]
    elif how == 1:
        values.extend([values[place]])
    elif how == 2:
        items = list(values)
        random.shuffle(items)
        del values[:]
        values.extend(items)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _change_field(values[place], random)
    elif how == 3 and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        values.extend([values[place]] * 5000)
    else:
        try:
            values[place] = _value(field, random)
        except (ValueError, TypeError, UnicodeEncodeError):
            del values[place]
