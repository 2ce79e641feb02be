"""Set what must be set before anything loads PyTorch: pytest reads this file first."""

import os
import sys

# A thread that waits for another one sleeps. By default it spins, and takes the core that the other one needs as soon
# as anything else runs: training a ResNet for four steps then took 29 seconds of CPU instead of 8.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# One process compiles for PyTorch: by default, it starts one for each core, and each of them imports PyTorch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# As in enginery/__init__.py, which some tests import after these libraries.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.modules["openvino_telemetry"] = None
