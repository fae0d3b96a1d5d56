"""`python -m sgdlimits` is the command line."""

from sgdlimits.cli import main

if __name__ == "__main__":
    main()
