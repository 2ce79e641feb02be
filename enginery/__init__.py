"""Enginery: a trained PyTorch model becomes inference engines, one per precision, each of them proven."""
