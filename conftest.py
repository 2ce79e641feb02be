"""Set what must be set before anything loads PyTorch: pytest reads this file first."""

import gc
import os

gc.disable()  # until the tests are collected: searches for garbage are a quarter of the time that imports take

import enginewright  # noqa: E402, F401  # tells ONNX Runtime and OpenVINO to report to nobody, before a test loads them

# A thread that waits for another one sleeps. By default it spins, and takes the core that the other one needs as soon
# as anything else runs: training a ResNet for four steps then took 29 seconds of CPU instead of 8.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# One thread is enough for networks as small as these: two take 15 % more of CPU, and two workers fill two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# NumPy's library has no choice of how to wait: it gets one thread. A rescue then takes 5 seconds of CPU instead of 12.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# One process compiles for PyTorch: by default, it starts one for each core, and each of them imports PyTorch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# It takes the system's word for the vectors that this CPU has, compiles no program for each kind to see, and no headers
# in advance, which would pay for many networks. The first one then takes 7 seconds of CPU instead of 18.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
