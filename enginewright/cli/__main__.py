"""Run `enginewright` as `python -m enginewright.cli`."""

from enginewright.cli.main import main

if __name__ == "__main__":
    main()
