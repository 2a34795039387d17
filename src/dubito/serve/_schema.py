"""The shape of what is answered."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dubito.serve._problem import CODES

__all__ = ["Answer", "Gallery", "Limits", "Model", "Refusal", "State"]


class _Exact(BaseModel):
    """No keys but those that are described."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class State(_Exact):
    """That the service is well."""

    status: Literal["ok", "ready"]


class Error(_Exact):
    """What is wrong with a request."""

    code: Literal[tuple(CODES)] = Field(examples=["too_many"])  # type: ignore[valid-type]
    message: str = Field(examples=["300 inputs; a request may have 256"])
    index: int | None = Field(
        default=None, description="Which input is at fault; absent where none is."
    )


class Refusal(_Exact):
    """A request that gets no answer."""

    error: Error


class Bound(_Exact):
    """The last value of a measure that passes."""

    measure: str = Field(examples=["vacuity"])
    value: float | Literal["inf", "-inf"] = Field(examples=[0.62])


class Policy(_Exact):
    """What decides whether to answer."""

    version: str
    sure: Bound
    familiar: Bound | None
    promise: dict[str, float]
    seen: dict[str, float]
    text: str


class Limits(_Exact):
    """What a request may have."""

    max_body_bytes: int
    max_pixels: int
    max_batch: int
    timeout_s: float


class Column(_Exact):
    """A column of a table: numbers, or categories."""

    name: str
    categories: list[str] | None
    span: list[float] | None


class Scales(_Exact):
    """The most that each uncertainty can be."""

    data: float
    distributional: float
    total: float


class Drawing(_Exact):
    """How what a person draws is made like the training images."""

    fill: float = Field(description="The longer side of the ink, as a share of the square's.")
    centre: Literal["mass", "box"]
    stroke: float = Field(description="The width of a stroke, as a share of the square's side.")


class Model(_Exact):
    """The model that is served."""

    name: str
    version: str
    method: str = Field(examples=["iedl"])
    classes: list[str]
    kind: Literal["image", "table", "array"]
    shape: list[int]
    mode: Literal["L", "RGB"] | None
    pixels: bool = Field(description="Whether arrays hold pixels, numbers in [0, 1].")
    columns: list[Column] | None
    drawing: Drawing | None
    calibrated: bool
    evidential: bool
    policy: Policy | None
    limits: Limits
    versions: dict[str, str]
    scales: Scales


class Uncertainty(_Exact):
    """In nats, before calibration: data + distributional = total."""

    data: float | None = Field(description="Expected entropy: the classes overlap here.")
    distributional: float | None = Field(description="Mutual information: evidence is lacking.")
    total: float = Field(description="Entropy of the mean.")


class Size(_Exact):
    """Of an image as it was sent."""

    width: int
    height: int


class Prediction(_Exact):
    """What is said of one input."""

    label: str
    probability: float = Field(description="Calibrated, where the model is.")
    probabilities: list[float] | None = Field(default=None, description="Absent where lean.")
    belief: list[float] | None = Field(default=None, description="With vacuity it sums to one.")
    vacuity: float | None
    alpha: list[float] | None = Field(default=None, description="Before calibration.")
    uncertainty: Uncertainty
    decision: Literal["accept", "abstain"] | None
    reason: Literal["accepted", "ambiguous", "unfamiliar"] | None
    why: str
    input: Size | None = None
    note: str | None = Field(default=None, description="What is strange about a row.")


class Which(_Exact):
    """The model that answered."""

    name: str
    version: str


class Answer(_Exact):
    """Predictions in the order of the inputs."""

    model: Which
    policy: str | None = Field(description="The policy's version.")
    predictions: list[Prediction]


class Item(_Exact):
    """A sample."""

    id: str
    src: str
    truth: str | None


class Group(_Exact):
    """Samples of one kind."""

    name: str
    kind: Literal["known", "unknown"]
    about: str
    items: list[Item]


class Gallery(_Exact):
    """Samples to try."""

    groups: list[Group]
