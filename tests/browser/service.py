"""Serve one of the models: python service.py NAME FOLDER. It prints its address."""

from __future__ import annotations

import sys
from pathlib import Path

from browser import models
from dubito.serve import ServeConfig, serve
from dubito.serve._demo import GALLERY, MODEL, make_demo

TOKEN = "token-of-the-browser-tests"
CONFIGS = {"species": {"max_body": 200_000}, "table": {"token": TOKEN}}


def main(name: str, folder: Path) -> None:
    """Make the model and serve it."""
    gallery = None
    if name == "demo":
        demo = make_demo(folder / name)
        model, gallery = demo / MODEL, demo / GALLERY
    else:
        model = getattr(models, name)(folder / name)
    config = ServeConfig.model_validate({"engine": "torch", **CONFIGS.get(name, {})})
    serve(
        model, port=0, gallery=gallery, config=config, on_start=lambda url: print(url, flush=True)
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
