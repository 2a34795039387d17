"""Reports: standalone HTML pages about a model."""

from dubito.report.training import write

__all__ = ["write"]
