"""Check params.yaml. `make repro` does so before it calls DVC, whose own messages are harder to understand."""

import sys

from enginery.core.errors import EngineryError
from enginery.core.params.all import Params

try:
    Params.read()
except EngineryError as mistake:
    sys.exit(str(mistake))
