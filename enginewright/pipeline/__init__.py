"""What the stages of dvc.yaml do. A file's stages run again together when its code changes, so that what takes long,
such as training, decoding and building, has a file of its own. This file says where each stage is."""

STAGES = {  # by the module of this package that has a function of the stage's name
    "machine": "machine",
    "samples": "samples",
    "weights": "weights",
    "export": "model",
    "reference": "model",
    "simplify": "ranges",
    "convert": "graphs",
    "calibrate": "ranges",
    "rescue": "graphs",
    "search": "search",
    "mix": "mix",
    "build": "build",
    "validate": "engine",
    "benchmark": "speed",
    "race": "speed",
    "trace": "engine",
    "report": "report",
    "gate": "gate",
}
