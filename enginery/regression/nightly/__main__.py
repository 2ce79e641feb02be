"""Run one night: `python -m enginery.regression.nightly`."""

from enginery.core.process import outlive_crashes
from enginery.core.streams import escape_what_is_printed

if __name__ == "__main__":
    escape_what_is_printed()
    outlive_crashes("nightly")  # before libraries start threads; an engine may crash in a race
    from enginery.regression.nightly.night import main

    main()
