"""Contents of files that once ended in a traceback, or in more than a sentence, and how they must end."""

import io
import json
import zipfile

import numpy as np
from torture.forked import SENTENCE, TOLD, WORKED


def _npy() -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.ones((2, 9, 9, 3), np.uint8))
    return packed.getvalue()


def _packed(method: int) -> bytes:
    """Return an archive that says of its array that it was packed by a method that there is not."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("images.npy", _npy())
    found = bytearray(packed.getvalue())
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        found[found.index(mark) + place] = method
    return bytes(found)


DEEP, LONG, HALF = b"[" * 100_000, b"9" * 5000, rb"\ud800"
COCO = b'{"images": [%s], "categories": [{"id": 1, "name": "cat"}], "annotations": [%s]}'
BOMB = "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(10)).encode()
HALF_TRIED = (
    b'{"precision": "int8", "samples": [8, 8], "error": 0.2, "at_once": 0.2, "kept": [], "enough": null, "tried": '
    b'[{"names": ["round"], "error": 0.1, "at_once": null}]}'
)
IMAGE = b'{"id": 1, "file_name": "0.png"}'
# A kind of file, its content, and how reading it may end.
FOUND: list[tuple[str, bytes, tuple[str, ...]]] = [
    ("npy", _npy().replace(b"False", b"Fals("), (SENTENCE,)),
    ("npz of images", _packed(99), (SENTENCE,)),
    ("recipe", b"samples:\n  source: 2001-13-45\n", (SENTENCE,)),
    ("recipe", b"a: " + DEEP, (SENTENCE, TOLD)),
    ("params.yaml", b"samples: 2001-13-45\n", (SENTENCE,)),
    ("params.yaml", b"? [a, b]\n: 1\n", (SENTENCE,)),
    ("params.yaml", b"task: " + b"x" * 100_000, (SENTENCE,)),
    *(
        (kind, head + BOMB, (SENTENCE,))
        for kind, head in (
            ("params.yaml", b"model:\n"),
            ("recipe", b"model:\n"),
            ("fleet.yaml", b"targets:\n"),
            ("YOLO data.yaml", b"names:\n"),
        )
    ),
    ("recipe", b"model: &a {b: *a}", (SENTENCE,)),
    ("COCO", DEEP, (SENTENCE,)),
    ("COCO", COCO % (IMAGE, LONG), (SENTENCE,)),
    ("COCO", COCO % (IMAGE, b'{"image_id": 1, "category_id": 1, "bbox": [1, 1, 1%s, 1]}' % (b"0" * 400)), (SENTENCE,)),
    ("COCO", COCO.replace(b"cat", HALF) % (IMAGE, b""), (SENTENCE,)),
    ("COCO", COCO % (b'{"id": 1, "file_name": "\\u001b[2J0.png"}', b""), (SENTENCE,)),
    ("YOLO data.yaml", b"names: [cat\n", (SENTENCE,)),
    ("YOLO data.yaml", b"names: " + DEEP, (SENTENCE, TOLD)),
    ("YOLO labels", b"1 0.5 0.5 1e999 0.1", (SENTENCE,)),
    ("CSV of targets", b"path,target\n" + b"x" * 50_000 + b",1\n", (SENTENCE,)),
    ("JSON lines", b'{"text": "a", "label": ' + LONG + b"}\n", (SENTENCE,)),
    ("JSON lines", DEEP, (SENTENCE,)),
    ("JSON lines", b'{"text": "%s"}\n{"text": "a"}\n' % HALF, (SENTENCE,)),
    ("JSON lines", b'{"text": "a", "label": "%s"}\n' % HALF, (SENTENCE,)),
    ("JSON lines, pairs", b'{"text_a": "a", "text_b": "b", "score": 1%s}\n' % (b"0" * 400), (SENTENCE,)),
    ("nights.jsonl", b"\xff\n", (SENTENCE,)),
    ("good-engines.json", DEEP, (SENTENCE,)),
    ("dvc.lock", b"\xff\xfe\xff", (SENTENCE, WORKED)),  # it is removed, as what a kill left
    ("rwlock", json.dumps({"write": {"/a": {"pid": -1, "cmd": "dvc"}}, "read": {}}).encode(), (WORKED,)),
    ("rwlock", json.dumps({"write": {"/a": {"pid": 10**30, "cmd": "dvc"}}, "read": {}}).encode(), (WORKED,)),
    ("journal of a search", b'null\n[[1], 2]\n\xff\n[1, 2, 3]\n"ab"\n' + DEEP, (WORKED,)),
    ("answer of a target", b'{"target": "../../../a", "model": "m"}', (SENTENCE,)),
    ("answer of a target", b'{"\\n\\n": 1}', (SENTENCE,)),
    ("rounded.npz", _npy(), (SENTENCE,)),
    ("rescue.json", HALF_TRIED, (WORKED,)),
    ("engine, right hash", b"no blob", (SENTENCE,)),
    ("engine.json", DEEP, (SENTENCE,)),
]
