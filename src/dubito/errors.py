"""Errors that users can fix."""

__all__ = ["DubitoError"]


class DubitoError(ValueError):
    """Base class of errors that a user can fix: a bad argument, file or folder.

    The command line prints its message in one line. Any other exception is a bug.
    """


def reason(error: object) -> str:
    """Return the message of an error of another package, in one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]
