"""List the models of zoo.py, and make what each needs in the current folder: parameters, samples and weights."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Row = dict[str, Any]
Arrays = dict[str, NDArray[Any]]

TORCHVISION = (
    "alexnet", "vgg11", "vgg16_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "squeezenet1_0",
    "squeezenet1_1", "densenet121", "densenet169", "googlenet", "inception_v3", "mobilenet_v2", "mobilenet_v3_small",
    "mobilenet_v3_large", "mnasnet0_5", "mnasnet1_0", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "efficientnet_b0",
    "efficientnet_b3", "efficientnet_v2_s", "regnet_x_400mf", "regnet_x_1_6gf", "regnet_y_400mf", "regnet_y_1_6gf",
    "convnext_tiny", "convnext_small", "vit_b_16", "vit_b_32", "swin_t", "swin_s", "swin_v2_t", "swin_v2_s", "maxvit_t",
)  # fmt: skip
TIMM = (  # one of each family, and the small one
    "convnext_atto", "convnextv2_atto", "efficientnet_lite0", "tf_efficientnetv2_b0", "mobilenetv4_conv_small",
    "mobileone_s0", "repvgg_a0", "ghostnet_100", "hrnet_w18_small", "dla34", "resnest14d", "res2net50_26w_4s",
    "seresnet18", "skresnet18", "cspresnet50", "darknet53", "ese_vovnet19b_dw", "regnetz_005", "eca_nfnet_l0",
    "resnetv2_50x1_bit", "efficientformer_l1", "efficientvit_b0", "fastvit_t8", "edgenext_xx_small", "poolformer_s12",
    "caformer_s18", "mobilevit_xxs", "coatnet_pico_rw_224", "maxvit_pico_rw_256", "pvt_v2_b0", "twins_svt_small",
    "coat_lite_tiny", "cait_xxs24_224", "crossvit_tiny_240", "deit_tiny_distilled_patch16_224", "vit_tiny_patch16_224",
    "eva02_tiny_patch14_224", "xcit_nano_12_p16_224", "levit_128s", "mixer_s32_224", "gmlp_ti16_224", "resmlp_12_224",
    "convmixer_768_32", "volo_d1_224", "nest_tiny", "swinv2_tiny_window8_256", "hiera_tiny_224", "tiny_vit_5m_224",
    "rdnet_tiny", "inception_next_atto", "starnet_s1", "beit_base_patch16_224",
)  # fmt: skip
SEGMENTERS = (
    "lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50", "deeplabv3_resnet50", "fcn_resnet101",
    "deeplabv3_resnet101",
)  # fmt: skip
DETECTORS = {  # by how many pixels an image has; the layers of SSD ask for theirs
    "ssdlite320_mobilenet_v3_large": 128, "retinanet_resnet50_fpn": 128, "retinanet_resnet50_fpn_v2": 128,
    "fcos_resnet50_fpn": 128, "ssd300_vgg16": 300, "fasterrcnn_mobilenet_v3_large_320_fpn": 128,
    "fasterrcnn_mobilenet_v3_large_fpn": 128, "fasterrcnn_resnet50_fpn": 128, "fasterrcnn_resnet50_fpn_v2": 128,
    "maskrcnn_resnet50_fpn": 128, "maskrcnn_resnet50_fpn_v2": 128, "keypointrcnn_resnet50_fpn": 128,
}  # fmt: skip


class Small(NamedTuple):
    """A model of transformers: its architecture, what it reads, and the configuration that makes it small."""

    architecture: str
    reads: str
    config: Row


TEXT: Row = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
WORDS: Row = {"vocab_size": 200, "max_position_embeddings": 128, "pad_token_id": 0}
PIXELS: Row = {"image_size": 32, "num_channels": 3}
LAYERS: Row = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_layers": 2, "decoder_layers": 2}
HEADS: Row = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
SPEECH: Row = {"conv_dim": (32,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
TRANSFORMERS = {
    "bert": Small("BertForSequenceClassification", "text", TEXT | WORDS),
    "distilbert": Small(
        "DistilBertForSequenceClassification",
        "text",
        WORDS | {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    ),
    "roberta": Small("RobertaForSequenceClassification", "text", TEXT | WORDS),
    "electra": Small("ElectraForSequenceClassification", "text", TEXT | WORDS | {"embedding_size": 64}),
    "mpnet": Small("MPNetForSequenceClassification", "text", TEXT | WORDS),
    "albert": Small("AlbertForSequenceClassification", "text", TEXT | WORDS | {"embedding_size": 32}),
    "deberta-v2": Small("DebertaV2ForSequenceClassification", "text", TEXT | WORDS),
    "modernbert": Small(
        "ModernBertForSequenceClassification",
        "text",
        TEXT | WORDS | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "t5": Small("T5EncoderModel", "text", {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2}),
    "bart": Small("BartModel", "text", LAYERS | HEADS | WORDS),
    "gpt2": Small(
        "GPT2ForSequenceClassification",
        "text",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 200, "pad_token_id": 0},
    ),
    "llama": Small("LlamaForSequenceClassification", "text", TEXT | WORDS | {"num_key_value_heads": 2}),
    "qwen3": Small("Qwen3ForSequenceClassification", "text", TEXT | WORDS | {"num_key_value_heads": 2, "head_dim": 16}),
    "vit": Small("ViTForImageClassification", "image", TEXT | PIXELS | {"patch_size": 8}),
    "dinov2": Small("Dinov2ForImageClassification", "image", TEXT | PIXELS | {"patch_size": 8}),
    "swin": Small(
        "SwinForImageClassification",
        "image",
        PIXELS | {"patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "segformer": Small(
        "SegformerForImageClassification",
        "image",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    ),
    "clip-vision": Small("CLIPVisionModelWithProjection", "image", TEXT | PIXELS | {"patch_size": 8}),
    "wav2vec2": Small("Wav2Vec2ForSequenceClassification", "sound", TEXT | SPEECH | {"classifier_proj_size": 32}),
    "whisper": Small(
        "WhisperModel",
        "spectrum",
        LAYERS
        | HEADS
        | {"max_source_positions": 50, "vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 1},
    ),
}
GROUPS: dict[str, Sequence[str]] = {
    "torchvision": TORCHVISION,
    "timm": [f"timm:{name}" for name in TIMM],
    "transformers": [f"transformers:{name}" for name in TRANSFORMERS],
    "segmentation": SEGMENTERS,
    "detection": list(DETECTORS),
}
SIZES = (64, 96, 224)
GRAPH = "cuda-graph"  # where gpu_training.py trains, longer and with larger images
SIZES_THERE = (128, 224)
TRAINED = "data/weights/trained.pt"  # by gpu_training.py
# Parameters: ViT-H/14 has 632 million, and after 40 epochs was right for 75 % at a rate of 0.00003, for 10 % at 0.0003.
HUGE = 5 * 10**8
SCENE = 64  # pixels of the scenes for segmenters
WORDS_IN_TEXT, CLASSES = 24, 4  # of what models of transformers learn
LESSONS = 1000


def needs_of(name: str, epochs: int | None, device: str) -> Row:
    """Return the parameters of a model, and what the row says of it: `size` and `weights`."""
    library, _, short = name.rpartition(":")
    if library == "transformers":
        return _of_transformers(short, epochs, device)
    if name in DETECTORS or name in SEGMENTERS:
        return _of_scenes(name, epochs, device)
    return _of_digits(name, epochs, device)


def _of_digits(name: str, epochs: int | None, device: str) -> Row:
    """A classifier learns the digits by `weights.source: train`, or on a GPU by gpu_training.py."""
    from enginewright.model.weights import batch_norms

    on_gpu = device == GRAPH
    model, size, arguments = smallest(name, SIZES_THERE if on_gpu else SIZES)
    normalizes = bool(batch_norms(model))
    # One rule for all: networks without BatchNorm need a lower rate, and huge ones a lower one still.
    training: Row
    if on_gpu:
        _place(TRAINED).touch()  # the pipeline asks for it before there are samples to learn from
        is_huge = sum(each.numel() for each in model.parameters()) > HUGE
        usual, rate = (60, 0.001) if normalizes else (100, 0.00003 if is_huge else 0.0003)
        training = {"learning_rate": rate}
    else:
        usual = 4 if size < SIZES[-1] else 1
        training = {"size": size, "learning_rate": 0.003 if normalizes else 0.0005, "device": device}
    training["epochs"] = usual if epochs is None else epochs
    changes = {
        "model": {"source": name, "arguments": arguments},
        "samples": {"preprocessing": {"resize": size, "crop": size}},
        "weights": {"training": training} | ({"source": TRAINED} if on_gpu else {}),
    }
    told = f"{training['epochs']} epochs{' on a GPU' if on_gpu else ''}"
    return {"size": size, "weights": told, "changes": changes}


def smallest(name: str, sizes: Sequence[int]) -> tuple["nn.Module", int, Row]:
    """Return the model, the first of the sizes whose images it takes, and the arguments that it needs for that."""
    import torch

    from enginewright.core.params.model import ModelParams
    from enginewright.model.factory import make_model

    why: Exception
    for size in sizes:
        for arguments in ({}, {"img_size": size}):  # as many networks of timm have it
            if arguments and not name.startswith("timm:"):
                continue
            try:
                model = make_model(ModelParams(source=name, arguments=arguments), 10)
                model(torch.zeros(2, 3, size, size))
            except Exception as error:  # networks raise different errors for images that are too small
                why = error
                continue
            return model, size, arguments
    raise why


def train_by_graph(training: Path) -> None:
    """Train the model of params.yaml on a GPU, and write the weights that params.yaml names."""
    import torch
    from filelock import FileLock
    from gpu_training import train_on_gpu

    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import SampleSet
    from enginewright.model.factory import make_model
    from enginewright.model.weights import known_labels

    params, samples = Params.read(), SampleSet.open(training)
    how = params.weights.training
    torch.manual_seed(how.seed)
    model = make_model(params.model, samples.classes)
    images = np.concatenate([array for feeds in samples.batches(64) for array in feeds.values()])
    one_at_a_time = f"zoo-gpu-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
    with FileLock(Path(tempfile.gettempdir(), one_at_a_time)):
        train_on_gpu(model, torch.from_numpy(images), known_labels(samples), how.epochs, how.learning_rate)
    torch.save(model.state_dict(), _place(TRAINED))


def _of_scenes(name: str, epochs: int | None, device: str) -> Row:
    """A segmenter or a detector learns scenes of digits, as recipes/scenes.py makes them."""
    import torch

    from enginewright.core.params.model import ModelParams
    from enginewright.model.factory import make_model
    from recipes import scenes

    make_model(ModelParams(source=name, arguments={}), 10)  # says which detectors are refused, and why
    few = 4 if epochs is None else epochs
    usual, size = (scenes.DETECTOR, DETECTORS[name]) if name in DETECTORS else (scenes.SEGMENTER, SCENE)
    kind = usual._replace(model=name, size=size, scenes=LESSONS, epochs=few)
    made, lessons = scenes.make_both(kind)
    torch.save(scenes.train(lessons, kind, few, device=device).state_dict(), _place("data/weights/scenes.pt"))
    source = _place("data/images/scenes" if name in DETECTORS else "data/images/scenes.npz")
    scenes.write(made, kind, source)
    changes: Row = {
        "task": "detection" if name in DETECTORS else "segmentation",
        "model": {"source": name},
        "samples": {
            "source": str(source),
            "training": 0,
            "preprocessing": {"resize": size, "crop": size, "resize_mode": "stretch"},
        },
        "weights": {"source": "data/weights/scenes.pt"},
    }
    if size > SIZES[-1]:
        changes["samples"] |= {"calibration": 32, "validation": 128}
    if name in SEGMENTERS:
        changes["samples"]["class_names"] = ["ground", *scenes.NAMES]
    return {"size": size, "weights": f"{few} epochs", "changes": changes}


def _of_transformers(short: str, epochs: int | None, device: str) -> Row:
    """A small network learns to tell classes of generated arrays, or of digits, and is saved with its configuration."""
    architecture, reads, config = TRANSFORMERS[short]
    few = 8 if epochs is None else epochs
    folder = _place(f"data/models/{short}")
    _teach(architecture, config, lessons(reads, LESSONS, 1), few, device).save_pretrained(folder)
    feeds, labels = lessons(reads, 400, 0)
    is_classifier = architecture.endswith("Classification")
    if architecture.endswith(
        "Model"
    ):  # states of each token: as in a folder of sentence-transformers, they are averaged
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    source = _place(f"data/images/{reads}.npz")
    arrays: Row = feeds | ({"labels": labels} if is_classifier else {})
    np.savez(source, **arrays)
    changes: Row = {
        "task": "classification" if is_classifier else "embedding",
        "model": {"source": f"transformers:{folder}"},
        "samples": {"source": str(source), "training": 0, "preprocessing": None},
        "weights": {"source": "given"},
    }
    if reads == "text":
        sizes = {"min": 8, "opt": WORDS_IN_TEXT, "max": 64}
        changes["build"] = {"profile": {"axes": {"sequence": sizes}}}
    shape = "x".join(map(str, next(iter(feeds.values())).shape[1:]))
    return {"size": shape, "weights": f"{few} epochs" if few else "random", "changes": changes}


def _teach(architecture: str, config: Row, taught: tuple[Arrays, NDArray[np.int64]], epochs: int, device: str) -> Any:
    """Return the whole model. One without a head learns below a linear layer, which is left out afterwards."""
    import torch
    import transformers
    from torch import nn

    feeds, labels = taught
    torch.manual_seed(0)
    made = getattr(transformers, architecture)
    whole = made(made.config_class(**config, num_labels=int(labels.max()) + 1)).to(device)
    part = whole.get_encoder() if whole.config.is_encoder_decoder else whole
    head = nn.LazyLinear(int(labels.max()) + 1).to(device)
    given = {name: torch.from_numpy(array).to(device) for name, array in feeds.items()}
    wanted = torch.from_numpy(labels).to(device)

    def scores(few: Any) -> Any:
        first = next(iter((found := part(**{name: array[few] for name, array in given.items()})).values()))
        if "logits" in found:
            return found["logits"]
        return head(first if first.ndim == 2 else first.mean(1))

    steps = [few for _ in range(epochs) for few in torch.randperm(len(labels)).split(32)]
    if steps:
        scores(steps[0][:2])  # makes the linear layer
        optimizer = torch.optim.AdamW([*part.parameters(), *head.parameters()], lr=0.001)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.002, total_steps=len(steps))
        whole.train()
        for few in steps:
            loss = nn.functional.cross_entropy(scores(few), wanted[few])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return whole.cpu().eval()


def lessons(reads: str, count: int, seed: int) -> tuple[Arrays, NDArray[np.int64]]:
    """Return inputs of `count` samples, and the class of each."""
    rng = np.random.default_rng(seed)
    if reads == "image":
        return _digits(count, seed)
    labels = rng.integers(0, CLASSES, count)
    if reads == "text":  # a quarter of the words are of those that tell the class
        telling = 3 + 40 * labels[:, np.newaxis] + rng.integers(0, 40, (count, WORDS_IN_TEXT))
        words = np.where(rng.random(telling.shape) < 0.25, telling, rng.integers(3, 200, telling.shape))
        mask = (np.arange(WORDS_IN_TEXT) < rng.integers(8, WORDS_IN_TEXT + 1, (count, 1))).astype(np.int64)
        return {"input_ids": words * mask, "attention_mask": mask}, labels
    if reads == "sound":  # a tone in noise
        phase = rng.uniform(0, 6.28, (count, 1)) + np.arange(4000) * 0.05 * (1 + labels[:, np.newaxis])
        return {"input_values": (np.sin(phase) + rng.normal(0, 0.5, phase.shape)).astype(np.float32)}, labels
    spectrum = rng.normal(0, 0.5, (count, 80, 100))  # louder in one of four bands
    for index, label in enumerate(labels):
        spectrum[index, 20 * label : 20 * label + 20] += rng.uniform(0.2, 1)
    return {"input_features": spectrum.astype(np.float32)}, labels


def _digits(count: int, seed: int) -> tuple[Arrays, NDArray[np.int64]]:
    """Return handwritten digits of 32 by 32 pixels. Those of one seed are not in the other's."""
    from sklearn.datasets import load_digits

    known = load_digits()
    mine = np.flatnonzero(np.arange(len(known.images)) % 4 == 0 if seed == 0 else np.arange(len(known.images)) % 4 > 0)
    mine = mine[:count]
    pixels = np.kron(known.images[mine] / 8 - 1, np.ones((4, 4))).astype(np.float32)
    return {"pixel_values": np.repeat(pixels[:, np.newaxis], 3, axis=1)}, known.target[mine].astype(np.int64)


def _place(path: str) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)
