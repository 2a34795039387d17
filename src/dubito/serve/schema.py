"""Response models, and the OpenAPI description of requests for predictions."""

from typing import Annotated, Literal

from pydantic import BaseModel, InstanceOf, JsonValue, PlainSerializer

from dubito.formats import FORMATS, InputFormat
from dubito.policy import Policy
from dubito.serve.gallery import Drawing
from dubito.serve.inputs import FORM, JSON, InputReader
from dubito.tasks import AnyTask
from dubito.types import Json

__all__: list[str] = []

#: statuses of POST /v1/predict
REFUSALS = (400, 401, 408, 413, 415, 422, 500, 503, 504)


class Refusal(BaseModel):
    """Why a request was refused."""

    detail: str


class PredictionRow(BaseModel, extra="allow"):
    """Prediction of one input: the columns that files have, without empty ones.

    - prediction: class or number; with several targets, `prediction.<name>` and so on
    - probability: calibrated probability of the predicted class
    - lower, upper: calibrated interval; an infinite end is a text
    - set: classes of which one is the true class with the probability of the level
    - total, aleatoric, epistemic: uncertainty before calibration
    - accepted, reason: decision of the policy
    - note: values outside the range of the training data
    - error: why the model has no prediction; then there is nothing else
    - probs: calibrated probability of each class
    - vacuity, belief, alpha: evidence of a Dirichlet, by class, with `?evidence=true`
    """

    prediction: str | float | None = None
    probability: float | None = None
    lower: float | str | None = None
    upper: float | str | None = None
    set: list[str] | None = None
    total: float | None = None
    aleatoric: float | None = None
    epistemic: float | None = None
    accepted: bool | None = None
    reason: Literal["accepted", "ambiguous", "unfamiliar", "out_of_range"] | None = None
    note: str | None = None
    error: str | None = None
    probs: dict[str, float] | None = None


class Predictions(BaseModel):
    """Version of the model, and predictions in the order of the inputs."""

    model: str
    predictions: list[PredictionRow]


def _described(format: InputFormat) -> Json:
    """Return a format as in model.json, but for the content of a tokenizer, which is large."""
    return {name: value for name, value in FORMATS.to_dict(format).items() if name != "tokenizer"}


class ModelInfo(BaseModel):
    """The model that is served.

    - name, version: name of its folder, and a hash of its content
    - engine: engine that runs it
    - task, inputs, method, policy: as in model.json, without a tokenizer
    - levels: coverage of the intervals of a regression, or of prediction sets; the first is that of
      `lower`, `upper` and `set`, further columns have it in their names
    - shape: shape of an encoded input
    - media_types: types of bodies that POST /v1/predict takes
    - columns: columns that predictions may have
    - unit: unit of the uncertainty
    - evidence: whether `?evidence=true` adds columns
    - drawing: how the page prepares drawings
    - limits: limits of a request; see `ServeConfig`
    """

    name: str
    version: str
    engine: Literal["torch", "onnx"]
    task: AnyTask
    inputs: Annotated[InstanceOf[InputFormat], PlainSerializer(_described)]
    method: dict[str, JsonValue]
    policy: Policy | None
    levels: tuple[float, ...]
    shape: tuple[int, ...]
    media_types: list[str]
    columns: list[str]
    unit: str
    evidence: bool
    drawing: Drawing | None
    limits: dict[str, int]


def describe_request(reader: InputReader) -> Json:
    """Describe the requests for predictions of a model, as an operation of OpenAPI.

    Args:
        reader: Reader of the inputs.
    """
    binary = {"type": "string", "format": "binary"}
    form = {"type": "object", "additionalProperties": {"type": "array", "items": binary}}
    body = reader.body.model_json_schema()
    if items := body.pop("$defs", None):
        body["properties"][reader.key]["items"] = items["Row"]
    schemas = {JSON: body, FORM: form}
    content = {kind: {"schema": schemas.get(kind, binary)} for kind in reader.media_types}
    evidence = {"name": "evidence", "in": "query", "schema": {"type": "boolean", "default": False}}
    return {"requestBody": {"required": True, "content": content}, "parameters": [evidence]}
