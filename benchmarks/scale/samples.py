"""Measure the samples stage with more and more images: its memory must not grow. Estimate 50,000 images.

It writes photos of ImageNet's usual size once, then runs the stage's own code on more and more of them. Each run has a
new process. Its memory is RssAnon, read again and again: the memory of the process without the page cache of files.

    python benchmarks/scale/samples.py
    python benchmarks/scale/samples.py --sizes 3000 50000   # ten minutes, and 11 GB of disk for a while

The exit code is 1, with a sentence, where memory grows by more than a share of what the images themselves take.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calibration import in_own_process
from PIL import Image

from enginewright.core.params.samples import Preprocessing, SamplesParams
from enginewright.data.sample_set import input_file

PHOTO, DISTINCT, MANY, INTERVAL = (500, 375), 3000, 50_000, 0.01
MOST_GROWTH = 0.05  # of the bytes of the images that were added
HOW = Preprocessing(
    resize=(256, 256), crop=(224, 224), interpolation="bilinear", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


@dataclass(frozen=True)
class Run:
    images: int
    seconds: float
    anonymous: float  # MB, at its peak
    disk: float  # MB


def make_photos(count: int, folder: Path) -> None:
    """Write photos of smooth shapes under a little noise, about 60 kB each.

    After DISTINCT photos they repeat with a number appended: another hash, and as much to decode.
    """
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(min(count, DISTINCT)):
        shapes = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
            PHOTO, Image.Resampling.BICUBIC
        )
        noise = rng.normal(0, 8, (PHOTO[1], PHOTO[0], 3))
        photo = Image.fromarray((np.asarray(shapes) + noise).clip(0, 255).astype(np.uint8))
        photo.save(folder / f"{number:05}.jpg", quality=85)
    for number in range(DISTINCT, count):
        picture = (folder / f"{number % DISTINCT:05}.jpg").read_bytes()
        (folder / f"{number:05}.jpg").write_bytes(picture + number.to_bytes(4))


@contextlib.contextmanager
def watch_memory(readings: list[int]) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            status = Path("/proc/self/status").read_text()
            readings.append(int(re.findall(r"RssAnon:\s*(\d+) kB", status)[0]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def run_once(count: int, photos: Path, out: Path) -> Run:
    from enginewright.data.sources import open_source
    from enginewright.data.splits import write_split

    params = SamplesParams(source=str(photos), seed=0, validation=count, training=0, calibration=1, preprocessing=HOW)
    readings: list[int] = []
    started = time.perf_counter()
    with watch_memory(readings), contextlib.redirect_stdout(io.StringIO()):
        write_split(open_source(params, photos.parent), range(count), params, out)
    seconds = time.perf_counter() - started
    return Run(count, seconds, max(readings) / 1000, (out / input_file(0)).stat().st_size / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[375, 750, 1500, 3000], help="images")
    sizes = sorted(set(parser.parse_args().sizes))
    if len(sizes) < 2 or sizes[0] < 1:
        parser.error("two sizes or more are needed")
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(scratch) / "data" / "photos"
        make_photos(sizes[-1], photos)
        megabytes = sum(file.stat().st_size for file in photos.iterdir()) / 1e6
        print(f"{sizes[-1]} photos of {PHOTO[0]} by {PHOTO[1]}, {megabytes:.0f} MB; {os.cpu_count()} cores\n")
        print("| images | seconds | images per second | own memory at its peak, MB | on disk, MB |")
        print("|---|---|---|---|---|", flush=True)
        runs = []
        for size in sizes:
            run = in_own_process(run_once, size, photos, Path(scratch) / "split")
            speed = run.images / run.seconds
            print(f"| {size} | {run.seconds:.1f} | {speed:.0f} | {run.anonymous:.0f} | {run.disk:.0f} |", flush=True)
            runs.append(run)
    first, last = runs[0], runs[-1]
    more = (last.anonymous - first.anonymous) / (last.images - first.images)  # MB an image
    growth = more / (last.disk / last.images)
    times = MANY / last.images
    memory = last.anonymous + max(0, more) * (MANY - last.images)
    print(
        f"\n{MANY:,} images: {times * last.seconds / 60:.0f} minutes, {times * last.disk / 1000:.1f} GB on disk, "
        f"{memory:.0f} MB of memory: {1000 * more:.1f} kB for each image added, {growth:.1%} of its pixels."
    )
    if growth > MOST_GROWTH:
        sys.exit(f"Target missed: memory grows by {growth:.0%} of the images added, and may by {MOST_GROWTH:.0%}.")


if __name__ == "__main__":
    main()
