"""Errors that users can fix."""

__all__ = ["DubitoError"]


class DubitoError(ValueError):
    """Base class of errors that a user can fix: a bad argument, file or folder.

    The command line prints its message in one line. Any other exception is a bug.
    """
