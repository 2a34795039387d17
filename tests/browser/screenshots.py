"""Pictures of the page for the documents, of a demo that runs: python screenshots.py URL FOLDER."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from browser.hands import DIGITS, answered, draw
from browser.watched import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHOTS: dict[str, tuple[dict[str, Any], str]] = {
    "serve-accept": ({"viewport": {"width": 1180, "height": 800}}, "draw"),
    "serve-abstain": (
        {"viewport": {"width": 1180, "height": 800}, "color_scheme": "dark"},
        "letter",
    ),
    "serve-phone": (
        {
            "viewport": {"width": 360, "height": 800},
            "device_scale_factor": 2,
            "is_mobile": True,
            "has_touch": True,
        },
        "phone",
    ),
    "serve-triangle": ({"viewport": {"width": 1000, "height": 800}}, "blend"),
}
#: kind -> the group of the gallery, and which of its samples
SAMPLES = {"letter": ("Letters", 4), "blend": ("Two at once", 3)}


def act(page: Page, kind: str) -> None:
    """Bring the page into the state to be seen."""
    if kind in SAMPLES:
        group, place = SAMPLES[kind]
        page.locator(".group", has_text=group).locator(".sample").nth(place).click()
        answered(page)
        page.evaluate("scrollTo(0, 0)")
    else:
        draw(page, DIGITS["3" if kind == "draw" else "2"])
        answered(page)
    page.mouse.move(0, 0)
    page.wait_for_selector("#turn-trace circle >> nth=12", state="attached")
    page.wait_for_timeout(300)


def shot(page: Page, kind: str) -> bytes:
    """What is in sight or, for the triangle, its section."""
    if kind != "blend":
        return page.screenshot()
    box = page.locator("#triangle .sides").bounding_box()
    assert box is not None
    return page.screenshot(
        full_page=True,
        clip={
            "x": box["x"] - 24,
            "y": box["y"] - 16,
            "width": box["width"] + 48,
            "height": box["height"] + 32,
        },
    )


def save(content: bytes, path: Path, few: bool) -> None:
    """A small file; with few colours where there is no gradient that would show it."""
    with Image.open(io.BytesIO(content)) as opened:
        image = opened.convert("RGB")
        if few:
            image = image.quantize(192, dither=Image.Dither.NONE)
        image.save(path, optimize=True)


def shoot(browser: Browser, url: str, folder: Path) -> None:
    """All pictures."""
    for name, (options, kind) in SHOTS.items():
        context = browser.new_context(**options)
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector(".sample")
        act(page, kind)
        save(shot(page, kind), folder / f"{name}.png", few=kind != "blend")
        context.close()


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shoot(chromium, sys.argv[1], Path(sys.argv[2]))
        chromium.close()
