"""The command line in this process."""

from dubito import cli


def run(*words: object) -> int:
    """Run a command; return its exit status."""
    try:
        cli.main([str(word) for word in words])
    except SystemExit as left:
        return int(left.code or 0)
    return 0
