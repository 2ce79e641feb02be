"""Read samples from scikit-learn's digits, which need no download, or from the user's own files."""

from dataclasses import replace
from pathlib import Path

from enginewright.core.errors import EnginewrightError, bad_source
from enginewright.core.facts import LABELLED, Known
from enginewright.core.params.samples import SamplesParams
from enginewright.core.text import is_unicode
from enginewright.core.user_files import user_file
from enginewright.data.sources.arrays import ARRAY_SUFFIXES, ImageArray, Tensors, open_array, open_digits, open_tensors
from enginewright.data.sources.detections import ANNOTATIONS, open_coco, open_yolo_folder
from enginewright.data.sources.files import ImageFiles, open_folder, open_masked_folder, read_classes
from enginewright.data.sources.tables import Texts, open_table, open_texts

TEXTS = Path("data/texts")
Source = ImageFiles | ImageArray | Tensors | Texts


def open_source(params: SamplesParams, data: Path, known: Known = LABELLED, texts: Path = TEXTS) -> Source:
    """Open the samples with what the task wants to know of them, as far as it is there. Texts lie in another folder."""
    known = known.model_copy(update={"ignore": params.ignore})
    if params.text:
        listed = read_classes(params.class_names, texts)
        tokenizer = user_file(params.text.tokenizer, texts, "samples.text.tokenizer", "a tokenizer.json")
        path = user_file(params.source, texts, "samples.source", "a file of texts")
        source: Source = open_texts(path, tokenizer, listed, known)
    else:
        source = _open(params, data, known)
    names = (*source.class_names, *(source.names if isinstance(source, ImageFiles) else ()))
    if odd := [name for name in names if not is_unicode(name)]:
        raise bad_source(f"{odd[0]!r} is a name whose bytes are no text in UTF-8: rename the file")
    return source if known.labels else replace(source, labels=None)


def _open(params: SamplesParams, data: Path, known: Known) -> Source:
    listed = read_classes(params.class_names, data)
    if params.source == "digits":
        if listed:
            raise EnginewrightError("samples.class_names: the digits name their own classes; set it to null")
        return open_digits()
    path = user_file(params.source, data, "samples.source", "digits")
    if params.preprocessing is None:
        return open_tensors(path, listed, known, params.input)
    if known.array == "boxes" and (path.suffix == ".json" or (path / ANNOTATIONS).is_file()):
        return open_coco(path / ANNOTATIONS if path.is_dir() else path, data, listed)
    if known.array == "boxes" and (path / "images").is_dir():
        return open_yolo_folder(path, data, listed)
    if path.is_dir() and known.array == "masks":
        return open_masked_folder(path, data, listed, known.ignore)
    if path.is_dir():
        return open_folder(path, data, listed)
    if path.suffix == ".csv":
        return open_table(path, data, listed, known)
    if path.suffix in ARRAY_SUFFIXES:
        return open_array(path, listed, known)
    raise bad_source(
        f"{path} is none of what can be read; give 'digits', a folder of images, a .csv of paths, an .npz or .npy of "
        "pixels, or for task: detection a .json of annotations"
    )
