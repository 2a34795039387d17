"""Run the command line as `python -m dubito`."""

from __future__ import annotations

from dubito.cli import main

if __name__ == "__main__":
    main()
