"""Reports: standalone HTML pages about a model."""

from dubito._extras import need

__all__: list[str] = []


def check_packages() -> None:
    """Raise if a package that a report needs is missing; called before the work it reports."""
    for package in ("matplotlib", "jinja2"):
        need(package, "cli", ", or pass report=False")
