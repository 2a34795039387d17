"""Batch prediction on Ray Data: for more inputs than one machine predicts in time.

    pip install 'dubito[data]' 'ray[data]'
    python deploy/ray_predict.py runs/a photos predictions --address auto

Every machine reads the model and the inputs at the same paths and writes to the same folder. That
gets the rows of `dubito predict` in parts, `part-000000.parquet` and so on; pandas reads the folder
as one table. The same command continues after an interruption. An input that cannot be read has an
error in its row.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

import dubito
from dubito import data
from dubito.errors import DubitoError
from dubito.model import Model, Prediction


def open_inputs(model: Model, inputs: str) -> data.Source:
    """Open a folder of files or a table in the format of a model."""
    format = model.preprocessing.inputs
    return data.open(inputs, "all", format=format, labeled=False, on_error="report")


def part_file(out: Path, part: int) -> Path:
    """Return the file of a part."""
    return out / f"part-{part:06d}.parquet"


def to_table(prediction: Prediction, scores: Sequence[str]) -> pa.Table:
    """Return the rows of a prediction with types that do not depend on its errors."""
    complete = replace(prediction, errors={}).columns(scores)
    schema = pa.schema([(name, _type(pa.array(values).type)) for name, values in complete.items()])
    return pa.table(prediction.columns(scores), schema=schema)


def _type(found: pa.DataType) -> pa.DataType:
    """Return the type of a column: texts that are all missing, and empty lists, have none."""
    if pa.types.is_list(found):
        return pa.list_(_type(found.value_type))
    return pa.string() if pa.types.is_null(found) else found


class Worker:
    """Predicts parts with a model that is loaded once.

    Args:
        folder: Folder of the model.
        inputs: Folder of files, or a table.
        out: Folder of the parts.
        job: What `describe` returns.
        device: "cpu" or "cuda".
    """

    def __init__(
        self, folder: str, inputs: str, out: str, job: dict[str, Any], device: str
    ) -> None:
        self.model = dubito.load(folder, device=device)
        self.source, self.out, self.job = open_inputs(self.model, inputs), Path(out), job
        if describe(folder, self.source, job["rows"], job["scores"]) != job:
            raise DubitoError(f"{folder} or {inputs} differs between machines: share the folders")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Predict one part and write its file: {"part": [n]} -> {"rows": [n], "errors": [n]}."""
        (part,) = batch["part"].tolist()
        start, size = part * self.job["rows"], self.job["rows"]
        rows = range(len(self.source))[start : start + size]
        prediction = self.model.predict(self.source.subset(rows), on_error="report")
        file = part_file(self.out, part)
        partial = self.out / f"_{platform.node()}-{os.getpid()}"
        pq.write_table(to_table(prediction, self.job["scores"]), partial)
        partial.replace(file)  # a killed machine leaves no incomplete part
        return {"rows": [len(prediction)], "errors": [len(prediction.errors)]}


def describe(folder: str, source: data.Source, rows: int, scores: Sequence[str]) -> dict[str, Any]:
    """Return what the parts of a folder have in common."""
    model = hashlib.sha256(Path(folder, "model.json").read_bytes()).hexdigest()
    return {"model": model, "inputs": source.fingerprint(), "rows": rows, "scores": list(scores)}


def predict(
    folder: str,
    inputs: str,
    out: str,
    *,
    scores: Sequence[str] = (),
    rows: int = 4096,
    gpus: float = 0.0,
) -> tuple[int, int]:
    """Predict all parts that are missing, and return the numbers of new rows and of their errors.

    Args:
        folder: Folder of the model.
        inputs: Folder of files; or a .csv, .parquet or .npz file.
        out: Folder of the parts.
        scores: Further scores.
        rows: Rows of a part.
        gpus: GPUs of a worker.
    """
    place = Path(out)
    source = open_inputs(dubito.load(folder), inputs)
    job = describe(folder, source, rows, scores)
    file = place / "_job.json"  # pyarrow skips such names
    if not file.exists():
        place.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(job), "utf-8")
    elif json.loads(file.read_text("utf-8")) != job:
        raise DubitoError(f"{out} has parts of another model, input or option: name a new folder")
    parts = range(-(-len(source) // rows))
    missing = [part for part in parts if not part_file(place, part).exists()]
    if not missing:
        return 0, 0
    slots = ray.cluster_resources().get("GPU", 0) / gpus if gpus else ray.cluster_resources()["CPU"]
    done = ray.data.from_items(
        [{"part": part} for part in missing], override_num_blocks=len(missing)
    ).map_batches(
        Worker,
        fn_constructor_args=(folder, inputs, out, job, "cuda" if gpus else "cpu"),
        batch_size=1,
        num_gpus=gpus or None,
        concurrency=(1, max(1, min(len(missing), int(slots)))),
    )
    counts = [(row["rows"], row["errors"]) for row in done.iter_rows()]
    return sum(rows for rows, _ in counts), sum(errors for _, errors in counts)


def main() -> None:
    """Run the command; the exit status is 1 if a row has an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("inputs", help="folder of images; or a .csv, .parquet or .npz file")
    parser.add_argument("out", help="folder of the parts")
    parser.add_argument("--scores", default="", help="further scores, separated by commas")
    parser.add_argument("--rows", type=int, default=4096, help="rows of a part")
    parser.add_argument("--gpus", type=float, default=0.0, help="GPUs of a worker")
    parser.add_argument("--address", help='"auto": a cluster that runs; default: this machine')
    options = parser.parse_args()
    ray.init(address=options.address)
    paths = [str(Path(path).resolve()) for path in (options.model, options.inputs, options.out)]
    scores = [name for name in options.scores.split(",") if name]
    try:
        rows, errors = predict(*paths, scores=scores, rows=options.rows, gpus=options.gpus)
    except DubitoError as error:
        parser.exit(2, f"error: {error}\n")
    parser.exit(int(errors > 0), f"{rows:,} new rows, {errors:,} with errors: {options.out}\n")


if __name__ == "__main__":
    main()
