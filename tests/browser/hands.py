"""What a user does on the page, and what the page shows."""

from __future__ import annotations

import base64
import io
import math
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Page

Stroke = list[tuple[float, float]]
#: ms; a deadlock ends here, nothing else depends on it
PATIENCE = 120_000


def arc(
    x: float, y: float, across: float, down: float, begin: float, end: float, steps: int = 9
) -> Stroke:
    """Return a part of an ellipse, by angles in degrees, clockwise from the right."""
    angles = [math.radians(begin + (end - begin) * i / steps) for i in range(steps + 1)]
    return [(x + across * math.cos(a), y + down * math.sin(a)) for a in angles]


#: digit -> strokes on a square of side 1, as many people write it
DIGITS: dict[str, list[Stroke]] = {
    "1": [[(0.38, 0.32), (0.52, 0.18), (0.52, 0.82)]],
    "2": [[*arc(0.5, 0.34, 0.2, 0.17, -160, 40), (0.3, 0.82), (0.72, 0.82)]],
    "3": [[*arc(0.47, 0.34, 0.19, 0.16, -150, 90), *arc(0.47, 0.66, 0.21, 0.17, -90, 150)]],
    "4": [[(0.56, 0.18), (0.28, 0.6), (0.74, 0.6)], [(0.6, 0.4), (0.6, 0.84)]],
    "7": [[(0.3, 0.2), (0.7, 0.2), (0.44, 0.82)]],
}  # fmt: skip


def draw(page: Page, strokes: list[Stroke], scale: float = 1.0, shift: float = 0.0) -> None:
    """Draw with the mouse, scaled and shifted."""
    box = page.locator("#surface").bounding_box()

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = (shift + scale * value for value in point)
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    for stroke in strokes:
        page.mouse.move(*place(stroke[0]))
        page.mouse.down()
        for before, point in pairwise(stroke):
            page.mouse.move(*place(point), steps=1 + int(math.dist(before, point) / 0.1))
        page.mouse.up()


def png(pixels: npt.NDArray[np.uint8], form: str = "PNG") -> bytes:
    """Return an image as the content of a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


OFFER = """
([event, target, files, text]) => {
  const data = new DataTransfer();
  for (const { name, type, content } of files) {
    const bytes = Uint8Array.from(atob(content), (char) => char.charCodeAt(0));
    data.items.add(new File([bytes], name, { type }));
  }
  if (text !== null) data.setData("text/plain", text);
  const common = { bubbles: true, cancelable: true };
  const synthetic = event === "paste"
    ? new ClipboardEvent(event, { ...common, clipboardData: data })
    : new DragEvent(event, { ...common, dataTransfer: data });
  const element = document.querySelector(target);
  element.dispatchEvent(synthetic);
  return synthetic.defaultPrevented;
}
"""


def offer(
    page: Page,
    event: str,
    *files: tuple[str, str, bytes],
    text: str | None = None,
    target: str = "main",
) -> bool:
    """Paste or drop files (name, type, content) or text; return whether the page took them."""
    given = [
        {"name": name, "type": kind, "content": base64.b64encode(content).decode()}
        for name, kind, content in files
    ]
    taken: bool = page.evaluate(OFFER, [event, target, given, text])
    return taken


# Playwright does not get the content of files, so that the page records what it sends.
NOTE = """
window.sent = [];
const send = window.fetch;
window.fetch = (address, options = {}) => {
  const files = options.body instanceof FormData ? options.body.getAll("images") : [];
  if (files.length) window.sent.push(files);
  return send(address, options);
};
"""
SENT = """
async () => {
  const bytes = async (file) => Array.from(new Uint8Array(await file.arrayBuffer()));
  return Promise.all(window.sent.map((files) => Promise.all(files.map(bytes))));
}
"""


def sent(page: Page) -> list[list[bytes]]:
    """Return the files of each request so far."""
    return [[bytes(content) for content in files] for files in page.evaluate(SENT)]


SEEN = """
() => {
  const canvas = document.getElementById("seen");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return [canvas.height, canvas.width, Array.from(data)];
}
"""


def seen(page: Page) -> npt.NDArray[np.float64]:
    """Return the input of the model that the page shows: (H, W, 4) in 0..255."""
    height, width, data = page.evaluate(SEEN)
    return np.array(data, dtype=float).reshape(height, width, 4)


def until(page: Page, expression: str) -> None:
    """Wait for a condition. Playwright's own way is an eval, which the page forbids."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never: {expression}"
        page.wait_for_timeout(20)


def answered(page: Page, *states: str) -> str:
    """Wait for an answer, or for one of some states, and return the state."""
    states = states or ("accept", "abstain", "plain")
    done = '#answer:not([aria-busy="true"])'
    page.wait_for_selector(", ".join(f'{done} #verdict[data-state="{state}"]' for state in states))
    return page.locator("#verdict").get_attribute("data-state") or ""


def pick(page: Page, kind: str, place: int = 0) -> str:
    """Click a sample of the gallery, wait for its answer and return the state."""
    samples = f".group.{kind} .sample"
    page.locator(samples).nth(place).click()
    until(page, f"document.querySelectorAll('{samples}')[{place}].ariaPressed === 'true'")
    return answered(page)


def shown(page: Page) -> dict[str, Any]:
    """Return the numbers on the page: belief by class, vacuity, and the three uncertainties."""
    rows = page.locator("#bars tbody").first.locator("tr")
    belief = {
        rows.nth(i).locator("th").inner_text(): rows.nth(i).locator("td").nth(1).inner_text()
        for i in range(rows.count())
    }
    kinds = page.locator("#kinds .value").all_inner_texts()
    vacuity = page.locator("#bars .doubt td").nth(1).inner_text()
    return {"belief": belief, "vacuity": vacuity, "kinds": kinds}


def text(page: Page, name: str) -> str:
    """Return the text of an element by its id."""
    return page.locator(f"#{name}").inner_text()


def row(**changes: Any) -> dict[str, Any]:
    """Return a row of a response about ten classes, with changes."""
    shares = {str(k): 0.1 for k in range(10)}
    return {
        "prediction": "3", "probability": 0.1, "probs": shares, "belief": {**shares, "0": 0.05},
        "vacuity": 0.05, "alpha": dict.fromkeys(shares, 1.0), "total": 1.5, "aleatoric": 1.0,
        "epistemic": 0.5, "accepted": True, "reason": "accepted", **changes,
    }  # fmt: skip


PREDICT = "**/v1/predict*"


def respond(page: Page, **response: Any) -> None:
    """Give the same response to every request for predictions."""
    page.unroute_all()
    page.route(PREDICT, lambda route: route.fulfill(**response))


def show(page: Page, **changes: Any) -> tuple[str, str, str]:
    """Return stamp, headline and reason that the page shows for a row."""
    respond(page, json={"predictions": [row(**changes)]})
    draw(page, [[(0.5, 0.5)]])
    answered(page)
    return text(page, "stamp"), text(page, "headline"), text(page, "why")
