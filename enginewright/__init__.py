"""Turn a trained PyTorch model into inference engines, one for each precision, and prove each of them.

What docs/reference/python.md shows is in enginewright/cli/python.py, and is loaded when it is asked for: importing this
package imports no other library.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from enginewright.core.errors import EnginewrightError

# ONNX Runtime tells Microsoft, and OpenVINO's package tells Google, what they load and run, from threads and processes
# that would run beside a race, unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

__all__ = ["EnginewrightError", "__version__", "build", "compare", "open_engine", "read_report"]
__version__ = "0.3.0"  # semantic, see CHANGELOG.md; pyproject.toml takes it from here

if TYPE_CHECKING:
    from enginewright.cli.python import build, compare, open_engine, read_report
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__} has no {name}")
        from enginewright.cli import python

        return getattr(python, name)
