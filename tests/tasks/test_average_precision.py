"""mAP against pycocotools, and of sets drawn anew against the set itself written out."""

import time

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from enginewright.core.facts import COUNTED, CROWD, IGNORED_BOX, NO_CLASS
from enginewright.tasks.average_precision import match_all, mean_average_precision

ALL, HALF = slice(None), slice(1)
BEYOND_EVERY_SIZE = 1e11  # an area by which COCO ignores a box


def random_set(rng, images, classes, most_known=6, most_found=12, kinds=(COUNTED,), alike=0.0):
    """Return for each image what was found, near to what is known or anywhere, and what is known."""
    pairs = []
    for _ in range(images):
        known = np.full((most_known, 6), NO_CLASS, float)
        for row in known[: rng.integers(0, most_known + 1)]:
            left, top = rng.uniform(0, 60, 2)
            row[:] = (
                rng.integers(classes),
                left,
                top,
                *(np.array([left, top]) + rng.uniform(5, 40, 2)),
                rng.choice(kinds),
            )
        real, found = known[known[:, 0] >= 0], []
        for _ in range(rng.integers(0, most_found + 1)):
            if len(real) and rng.random() < 0.8:
                row = real[rng.integers(len(real))]
                box, kind = (
                    row[1:5] + rng.uniform(-2.4, 2.4, 4),
                    row[0] if rng.random() < 0.9 else rng.integers(classes),
                )
            else:
                box, kind = np.tile(rng.uniform(0, 50, 2), 2) + np.array([0, 0, 20, 20]), rng.integers(classes)
            found.append([*box, 0.5 if rng.random() < alike else rng.random(), kind])
        rows = np.array(found, float).reshape(-1, 6)
        pairs.append((rows[np.argsort(-rows[:, 4], kind="stable")], known))
    return pairs


def by_coco(pairs, classes):
    """Return mAP and mAP50 as pycocotools has them."""
    annotations, results = [], []
    for image, (found, known) in enumerate(pairs, 1):
        for kind, left, top, right, bottom, state in known[known[:, 0] >= 0].tolist():
            box = [left, top, right - left, bottom - top]
            area = BEYOND_EVERY_SIZE if state == IGNORED_BOX else box[2] * box[3]
            annotation = {"image_id": image, "category_id": int(kind), "bbox": box, "iscrowd": int(state == CROWD)}
            annotations.append({"id": len(annotations) + 1, "area": area, **annotation})
        for left, top, right, bottom, score, kind in found.tolist():
            box = [left, top, right - left, bottom - top]
            results.append({"image_id": image, "category_id": int(kind), "bbox": box, "score": score})
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": image} for image in range(1, len(pairs) + 1)],
        "categories": [{"id": each} for each in range(classes)],
        "annotations": annotations,
    }
    truth.createIndex()
    judged = COCOeval(truth, truth.loadRes(results), "bbox")
    judged.evaluate()
    judged.accumulate()
    judged.summarize()
    return judged.stats[:2]


@pytest.mark.parametrize(
    ("images", "classes", "kinds"),
    [
        (30, 3, (COUNTED,)),
        (60, 5, (COUNTED, COUNTED, CROWD, IGNORED_BOX)),
        (40, 40, (COUNTED, CROWD)),
        (9, 1, (COUNTED,)),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_map_is_that_of_pycocotools(images, classes, kinds, seed, capsys):
    pairs = random_set(np.random.default_rng(seed), images, classes, kinds=kinds, alike=0.3)
    matches, once = match_all(pairs), np.ones((1, images))
    found = [mean_average_precision(matches, once, levels)[0] for levels in (ALL, HALF)]
    assert found == pytest.approx(by_coco(pairs, classes), abs=1e-6)
    assert 0.05 < found[0] < found[1] < 1


def test_a_set_that_is_drawn_has_the_map_of_its_images():
    rng = np.random.default_rng(5)
    pairs = random_set(rng, 40, 4, kinds=(COUNTED, CROWD))
    drawn = rng.multinomial(40, np.full(40, 1 / 40), size=3)
    found = mean_average_precision(match_all(pairs), drawn.astype(float), ALL)
    for weights, value in zip(drawn, found, strict=True):
        written_out = [pairs[image] for image in np.repeat(np.arange(40), weights)]
        assert value == pytest.approx(mean_average_precision(match_all(written_out), np.ones((1, 40)), ALL)[0])


def test_thousands_of_sets_of_many_images_and_classes_take_seconds():
    rng = np.random.default_rng(0)
    matches = match_all(random_set(rng, 512, 80, most_known=14, most_found=100))
    weights = rng.multinomial(512, np.full(512, 1 / 512), size=200).astype(float)
    begin = time.process_time()
    mean_average_precision(matches, weights, ALL)
    assert time.process_time() - begin < 3  # ten times as many are drawn


def test_nothing_found_and_nothing_known_are_no_errors():
    nothing, box = np.empty((0, 6)), np.array([[0, 1, 1, 9, 9, COUNTED]], float)
    assert mean_average_precision(match_all([(nothing, box)]), np.ones((1, 1)), ALL).tolist() == [0]
    assert mean_average_precision(match_all([(nothing, box[:0])]), np.ones((1, 1)), ALL).tolist() == [0]
