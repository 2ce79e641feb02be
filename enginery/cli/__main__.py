"""`python -m enginery.cli` is `enginery`."""

from enginery.cli import main

if __name__ == "__main__":
    main()
