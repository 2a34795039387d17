"""Run the command line as `python -m dubito`."""

from dubito.cli import main

if __name__ == "__main__":
    main()
