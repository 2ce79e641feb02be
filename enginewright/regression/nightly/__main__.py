"""Run one night: `python -m enginewright.regression.nightly`."""

from enginewright.core.process import outlive_crashes
from enginewright.core.streams import escape_what_is_printed

if __name__ == "__main__":
    escape_what_is_printed()
    outlive_crashes("nightly")  # before libraries start threads; an engine may crash in a race
    from enginewright.regression.nightly.night import main

    main()
