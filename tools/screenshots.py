"""Take the pictures of the documentation from running services.

PYTHONPATH=. python tools/screenshots.py FOLDER NAME=URL ...
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tests.browser.hands import DIGITS, answered, draw
from tests.browser.watched import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE: dict[str, Any] = {"viewport": {"width": 1180, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
#: file -> name of the service, options of the browser, what to do
SHOTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "serve-accept": ("demo", WIDE, "draw"),
    "serve-abstain": ("demo", {**WIDE, "color_scheme": "dark"}, "letter"),
    "serve-phone": ("demo", PHONE, "draw"),
    "serve-regression": ("regression", WIDE, ""),
}


def act(page: Page, action: str) -> None:
    """Bring the page into the state to show."""
    if action == "draw":
        draw(page, DIGITS["3"])
    elif action == "letter":
        page.wait_for_selector(".sample")
        page.locator(".group", has_text="Letters").locator(".sample").nth(4).click()
        page.wait_for_selector(".sample[aria-pressed=true]")
    answered(page)
    if action:
        page.wait_for_selector("#turn-trace circle >> nth=12", state="attached")
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(0, 0)


def shoot(browser: Browser, urls: dict[str, str], folder: Path) -> None:
    """Write all pictures whose services run."""
    for name, (service, options, action) in SHOTS.items():
        if service not in urls:
            continue
        context = browser.new_context(reduced_motion="reduce", **options)
        page = context.new_page()
        page.goto(urls[service])
        page.wait_for_selector("body[data-ready]")
        act(page, action)
        with Image.open(io.BytesIO(page.screenshot())) as image:
            few = image.convert("RGB").quantize(192, dither=Image.Dither.NONE)
            few.save(folder / f"{name}.png", optimize=True)
        context.close()


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shoot(chromium, dict(pair.split("=", 1) for pair in sys.argv[2:]), Path(sys.argv[1]))
        chromium.close()
