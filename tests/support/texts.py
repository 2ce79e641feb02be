"""A small tokenizer and texts."""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"word{number}" for number in range(46)]


def write_tokenizer(path, words=WORDS):
    """Write a tokenizer whose tokens are words, with paddings and lengths of its own, which must not count."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def texts(count, seed=0, most=20):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, most))) for _ in range(count)]
