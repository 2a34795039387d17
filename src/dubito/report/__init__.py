"""Reports: standalone HTML pages about a model."""

__all__: list[str] = []
