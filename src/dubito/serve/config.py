"""Configuration of the service."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, field_validator

from dubito.api import find_device

__all__: list[str] = []

TOKEN = r"^[!-~]{16,}$"
Host = Annotated[str, Field(pattern=r"^(\*|(\*\.)?[^*/\s]+)$")]


class ServeConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Engine, limits and access rules of the service."""

    engine: Literal["auto", "torch", "onnx"] = "auto"
    """Engine of the model; "auto": on a CPU onnx, if it is installed and takes the model."""
    device: str = "cpu"
    """Device of the network: "auto", "cpu" or "cuda"."""
    threads: PositiveInt = 1
    """Threads of one computation."""
    batch_size: PositiveInt = 64
    """Maximum number of inputs in a batch."""
    max_inputs: PositiveInt = 256
    """Maximum number of inputs in a request."""
    max_body: PositiveInt = 8 << 20
    """Maximum size of a request's body in bytes."""
    max_json: PositiveInt = 1 << 20
    """Maximum size of a body of JSON in bytes; nothing else runs while it is parsed."""
    max_pixels: PositiveInt = 16_000_000
    """Maximum number of pixels in a request; for a JPEG, at the size it is decoded to."""
    memory: PositiveInt = 128 << 20
    """Bytes that the bodies and inputs of all requests may take together; a client, half of it."""
    max_requests: PositiveInt = 256
    """Maximum number of requests that are read or computed at a time."""
    max_connections: PositiveInt = 1024
    """Maximum number of connections."""
    body_timeout: PositiveFloat = 10.0
    """Seconds that a body may take to arrive."""
    timeout: PositiveFloat = 10.0
    """Seconds from the end of a body to its answer."""
    allowed_hosts: tuple[Host, ...] = ("localhost", "127.0.0.1", "[::1]")
    """Host names that requests may ask for, such as "*.example.com"; "*" allows all."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose header X-Forwarded-For names the client."""
    token: str | None = Field(default=None, pattern=TOKEN, repr=False)
    """Bearer token that clients must send; `serve` takes the environment variable DUBITO_TOKEN."""
    log_json: bool = False
    """Log JSON objects in place of text."""

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        find_device(device)
        return device
