"""Set what must be set before anything loads PyTorch: pytest reads this file first."""

import os

import enginery  # noqa: F401  # tells ONNX Runtime and OpenVINO to report to nobody, before a test loads them

# A thread that waits for another one sleeps. By default it spins, and takes the core that the other one needs as soon
# as anything else runs: training a ResNet for four steps then took 29 seconds of CPU instead of 8.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# NumPy's library has no such choice: it gets one thread. A rescue then takes 5 seconds of CPU instead of 12.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# One process compiles for PyTorch: by default, it starts one for each core, and each of them imports PyTorch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
