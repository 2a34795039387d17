"""`dubito serve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dubito.cli.features import MODULE, own_factory

if TYPE_CHECKING:
    from dubito.serve import Gallery, Settings

NOTES = (
    "The page is at /, POST /v1/predict takes images (multipart) and arrays or rows (json), "
    "/openapi.json describes all of it; /healthz, /readyz and /metrics are for whoever runs it. "
    "SIGTERM finishes what was accepted and ends; SIGHUP reads the bundle again, and keeps the old "
    "one where the new one is bad. The log is a JSON object a line, on the standard output. "
    "--module imports and runs code of yours."
)
_LIMITS, _WHERE = "Limits", "Where and who"


def _option(text: str, *names: str, panel: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel)


def serve(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE",
            help="The folder of a finished run, or of a bundle.",
            show_default=False,
        ),
    ] = None,
    demo: Annotated[
        bool, _option("Train on embedded digits (seconds, kept) and show the page.", "--demo")
    ] = False,
    open_page: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the page in a browser. [default: with --demo]",
            show_default=False,
        ),
    ] = None,
    gallery: Annotated[
        Path | None,
        _option("Samples for the page: a folder with a sub-folder of images for each kind."),
    ] = None,
    module: Annotated[str | None, typer.Option(help=MODULE, show_default=False)] = None,
    host: Annotated[
        str, _option("The address to listen on; 0.0.0.0 is all of them.", panel=_WHERE)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0: any free one.", rich_help_panel=_WHERE)
    ] = 8000,
    token_env: Annotated[
        str | None,
        _option("The environment variable that holds the bearer token to ask for.", panel=_WHERE),
    ] = None,
    token_file: Annotated[
        Path | None, _option("The file that holds the bearer token to ask for.", panel=_WHERE)
    ] = None,
    supervise: Annotated[
        bool,
        _option("Start the service in a process of its own, again whenever it dies.", panel=_WHERE),
    ] = False,
    max_body_bytes: Annotated[int, _option("Bytes of a request.", panel=_LIMITS)] = 8 << 20,
    max_pixels: Annotated[
        int, _option("Pixels of a request's images together.", panel=_LIMITS)
    ] = 16_000_000,
    max_batch: Annotated[int, _option("Inputs of a request.", panel=_LIMITS)] = 256,
    max_requests: Annotated[int, _option("Requests at once.", panel=_LIMITS)] = 256,
    max_connections: Annotated[int, _option("Connections at once.", panel=_LIMITS)] = 1024,
    queue: Annotated[
        int, _option("Inputs that may wait for the model; beyond, 503.", panel=_LIMITS)
    ] = 1024,
    timeout_s: Annotated[
        float, _option("Seconds from a whole request to its answer.", panel=_LIMITS)
    ] = 10.0,
    read_s: Annotated[float, _option("Seconds for a body to arrive.", panel=_LIMITS)] = 30.0,
    batch_size: Annotated[
        int, _option("Inputs that the model gets at once; 1: one by one.", panel=_LIMITS)
    ] = 64,
    gather_ms: Annotated[
        float, _option("Milliseconds to wait for others to fill a batch.", panel=_LIMITS)
    ] = 2.0,
    drain_s: Annotated[
        float, _option("Seconds to finish requests when told to stop.", panel=_LIMITS)
    ] = 30.0,
    log_requests: Annotated[bool, _option("Log each request, not only events.")] = True,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads that torch computes with.", rich_help_panel=_LIMITS)
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Serve a trained model over HTTP, with a page to try it."""
    given = dict(locals())
    try:
        from dubito.serve import Settings, token_from
    except ImportError as error:
        raise ValueError(str(error)) from error  # its message has the line to install

    if (folder is None) is not demo:
        raise ValueError("give the folder of a BUNDLE, or --demo, and not both")
    token = token_from(token_env, token_file)
    known = {one.name for one in fields(Settings)}
    settings = Settings(token=token, **{k: v for k, v in given.items() if k in known})
    console = Console(stderr=True)
    home, samples = _demo(console) if folder is None else (folder, gallery)
    shown = demo if open_page is None else open_page
    _run(home, module, gallery or samples, settings, threads, device, console, shown, supervise)


def _demo(console: Console) -> tuple[Path, Path]:
    """The demonstration's bundle and gallery, made now where they are not kept yet."""
    from rich.progress import Progress

    from dubito.serve import demo

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Training on digits", total=None)
        home = demo(lambda done, total: bar.update(task, completed=done, total=total))
    return home / "digits", home / "gallery"


def _run(
    folder: Path,
    module: str | None,
    gallery: Path | None,
    settings: Settings,
    threads: int,
    device: str,
    console: Console,
    shown: bool,
    supervise: bool,
) -> None:
    from dubito import serve

    with serve.bound(settings.host, settings.port) as listening:
        address = _address(settings.host, listening.getsockname()[1])
        ready = _ready(address, console, shown)
        if supervise:
            serve.supervise(
                lambda told: _serve(
                    folder, module, gallery, settings, threads, device, listening, told
                ),
                listening,
                ready,
            )
        else:
            _serve(folder, module, gallery, settings, threads, device, listening, ready)


def _serve(
    folder: Path,
    module: str | None,
    gallery: Path | None,
    settings: Settings,
    threads: int,
    device: str,
    listening: Any,
    ready: Callable[[], None] = lambda: None,
) -> None:
    import torch

    from dubito import runs, serve

    torch.set_num_threads(threads)
    place, factory = runs.device_named(device), own_factory(module, Console(stderr=True))

    def samples(classes: tuple[str, ...]) -> Gallery | None:
        return None if gallery is None else serve.read_gallery(gallery, classes)

    service = serve.Service(lambda: serve.load(folder, place, factory), settings, gallery=samples)
    serve.run(service, listening, ready)


def _address(host: str, port: int) -> str:
    """Where a browser on this machine finds the page."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"


def _ready(address: str, console: Console, shown: bool) -> Callable[[], None]:
    def tell() -> None:
        console.print(Text(f"Serving at {address} (Ctrl+C ends it)"), soft_wrap=True)
        if shown:
            import threading
            import webbrowser

            # A browser may take its time to start; the service must not wait for it.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    return tell
