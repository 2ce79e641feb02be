"""Run one night: `python -m enginewright.nightly`."""

from enginewright.core.process import escape_what_is_printed, outlive_crashes

if __name__ == "__main__":
    escape_what_is_printed()
    outlive_crashes("nightly")  # before libraries start threads; an engine may crash in a race
    from enginewright.nightly.night import main

    main()
