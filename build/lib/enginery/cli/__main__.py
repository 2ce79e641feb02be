"""Run `enginery` as `python -m enginery.cli`."""

from enginery.cli.main import main

if __name__ == "__main__":
    main()
