"""Serve one of the models: python service.py NAME FOLDER. It prints its address."""

import sys
from importlib import import_module
from pathlib import Path

from dubito.serve import ServeConfig, serve
from tests.browser import models

TOKEN = "token-of-the-browser-tests"
CONFIGS = {"species": {"max_body": 200_000}, "table": {"token": TOKEN}}


def main(name: str, folder: Path) -> None:
    """Make the model and serve it."""
    gallery = None
    if name == "demo":
        sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
        example = import_module("serve_digits")
        example.make(folder / name)
        model, gallery = folder / name / example.MODEL, folder / name / example.GALLERY
    else:
        model = getattr(models, name)(folder / name)
    config = ServeConfig.model_validate({"engine": "torch", **CONFIGS.get(name, {})})
    serve(
        model, port=0, gallery=gallery, config=config, on_start=lambda url: print(url, flush=True)
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
