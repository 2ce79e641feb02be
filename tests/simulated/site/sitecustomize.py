"""Python imports this when it starts, wherever this folder is on PYTHONPATH."""

import os
import sys
from pathlib import Path

if "SIMULATED_TENSORRT" in os.environ:
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import simulated

    simulated.install()
