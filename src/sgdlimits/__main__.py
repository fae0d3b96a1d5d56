"""Entry point of `python -m sgdlimits`, the command line."""

from sgdlimits.cli import main

if __name__ == "__main__":
    main()
