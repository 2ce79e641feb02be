"""`enginewright infer`."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from enginewright.cli.completion import FILE, FOLDER, add_engine, add_path

UNREADABLE = 5
SUMMARY = "answer for images, texts or arrays: classes, boxes, areas, numbers"
EXAMPLES = """\
examples:
  enginewright infer artifacts/engines/int8 cat.jpg dog.png
  enginewright infer artifacts/engines/int8 photos --top 1   all images in a folder
  enginewright infer artifacts/engines/int8 photos --json | jq -r '.top[0].class'
  enginewright infer artifacts/engines/int8 photos --pictures seen
  enginewright infer artifacts/engines/int8 "a text" more.csv
  enginewright infer artifacts/engines/int8 houses.npz
  enginewright infer artifacts/engines/int8 - < lines.txt

Samples are prepared like those on which the engine was validated. An engine
for texts takes texts as they stand and files (.csv, .jsonl, .txt); where it
reads two texts as one, a tab divides them. One without images takes .npz files
that have an array for each input. - stands for the lines of standard input:
texts, or paths of images.
--json prints a line for each: {"image": ..., "error": ...}, or {"image": ...},
{"text": ...} or {"file": ..., "row": ...} with what the task has: "top":
[{"class": ..., "index": ..., "probability": ...}] of a classifier, "boxes" of
a detector, in pixels of the image, "areas" with a "share" of a segmenter,
"values" or a "vector".
--pictures draws each answer onto a copy of its image.
Exits 5 if an image could not be read, after answering for the others; 1 if the
engine cannot be used."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    what = "image files and folders of them, texts and files of them, or files of arrays"
    add_path(command, "samples", FILE, str, nargs="+", metavar="SAMPLE", help=what)
    at_a_time = "samples at a time; the engine's largest if not given"
    command.add_argument(
        "--top", type=_positive, default=3, metavar="K", help="how many classes or boxes to name, 3 if not given"
    )
    command.add_argument("--batch", type=_positive, metavar="N", help=at_a_time)
    command.add_argument("--threads", type=_positive, metavar="N", help="CPU threads; one per usable core if not given")
    command.add_argument("--json", action="store_true", help="a line of JSON for each sample")
    add_path(command, "--pictures", FOLDER, metavar="FOLDER", help="where to draw the answers, on copies of the images")


def run(chosen: Namespace) -> int:
    from enginewright.cli.inference.infer import infer

    unread = infer(
        chosen.engine, chosen.samples, chosen.top, chosen.batch, chosen.threads or 0, chosen.json, chosen.pictures
    )
    return UNREADABLE if unread else 0


def _positive(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise ArgumentTypeError(f"{given} is no whole number from 1 on")
    return int(given)
