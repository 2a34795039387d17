"""Reports: standalone HTML pages about a model."""
