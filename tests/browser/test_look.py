"""Look and accessibility: sizes, colors, keyboard, and a layout that stays in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.browser.hands import DIGITS, answered, draw, pick, seen, shown

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PHONE = {"width": 360, "height": 740}
WIDE = {"width": 1280, "height": 900}

# Elements with visible text: the text, its color, the color behind it, and its size.
TEXTS = """
() => {
  const apart = ".unseen, .skip, dialog:not([open]), noscript, svg, :disabled, .hint, .drop";
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const texts = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((part) => part.nodeType === 3 && part.textContent.trim());
    const shown = node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!own || !shown || node.closest(apart)) continue;
    const style = getComputedStyle(node);
    let behind = node;
    let ground = [0, 0, 0, 0];
    while (behind && (ground[3] ?? 1) === 0) {
      ground = parse(getComputedStyle(behind).backgroundColor);
      if (getComputedStyle(behind).backgroundImage !== "none") ground = null;
      if (ground === null) break;
      behind = behind.parentElement;
    }
    if (ground === null) continue;
    const bold = Number(style.fontWeight) >= 700;
    const text = node.textContent.trim().slice(0, 40);
    texts.push([text, parse(style.color), ground, parseFloat(style.fontSize), bold]);
  }
  return texts;
}
"""

PLACES = """
() => Object.fromEntries([".draw", "#verdict", ".beliefs", ".uncertainties", "#disturb", "#gallery",
  "#triangle", ".foot"].map((selector) => {
    const box = document.querySelector(selector).getBoundingClientRect();
    return [selector, [box.left, box.top + scrollY, box.width, box.height]];
}))
"""


def luminance(color: list[float]) -> float:
    shares = np.array(color[:3]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(first: list[float], other: list[float]) -> float:
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted([luminance(first), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_contrast_of_text(opened, scheme, dark):
    page = opened(color_scheme=scheme).page
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    paper = luminance(page.evaluate(ground))
    assert paper < 0.05 if dark else paper > 0.8
    for kind in ("known", "unknown"):
        pick(page, kind)
        texts = page.evaluate(TEXTS)
        assert len(texts) > 60
        poor = [
            (text, round(contrast(ink, ground), 2))
            for text, ink, ground, size, bold in texts
            if contrast(ink, ground) < (3 if size >= 24 or (bold and size >= 18.66) else 4.5)
        ]
        assert not poor


@pytest.mark.parametrize("name", ["demo", "photos", "regression", "reviews"])
def test_nothing_is_wider_than_the_screen(opened, name):
    page = opened(name).page
    beyond = """
    (width) => [...document.querySelectorAll("body *")]
      .filter((node) => node.checkVisibility() && !node.closest(".unseen, .skip"))
      .filter((node) => node.getBoundingClientRect().right > width + 0.5)
      .map((node) => node.id || node.className || node.tagName)
    """
    for width in (320, 360, 560, 740, 900, 1600):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(beyond, width) == []


def test_targets_on_a_phone_are_large_enough(opened):
    page = opened(viewport=PHONE, has_touch=True).page
    page.wait_for_selector(".sample")
    sizes: list[list[Any]] = page.evaluate("""
      () => [...document.querySelectorAll("button, select, [type=range], .choose label, .check")]
        .filter((node) => node.checkVisibility())
        .map((node) => [node.id || node.className, node.offsetWidth, node.offsetHeight])
    """)
    assert len(sizes) > 20
    assert not [size for size in sizes if min(size[1:]) < 24]


@pytest.mark.parametrize("viewport", [PHONE, WIDE])
def test_nothing_moves_when_answers_come(opened, viewport):
    page = opened(viewport=viewport).page
    page.wait_for_selector(".sample")
    before = page.evaluate(PLACES)
    states = set()
    for kind, place in [("known", 0), ("unknown", 0), ("known", 1), ("unknown", 1)]:
        states.add(pick(page, kind, place))
        after = page.evaluate(PLACES)
        for name, box in before.items():
            assert after[name] == pytest.approx(box, abs=1), name
    assert states == {"accept", "abstain"}


def test_accepted_and_abstained_differ_without_color(demo):
    page = demo.page
    looks = {}
    for kind in ("known", "unknown"):
        state = pick(page, kind)
        border = "getComputedStyle(document.getElementById('verdict')).borderTopStyle"
        looks[state] = page.locator("#tile").inner_text(), page.evaluate(border)
    assert looks == {"accept": ("0", "solid"), "abstain": ("?", "dashed")}


def focused(page: Page) -> str:
    name: str = page.evaluate("document.activeElement.id || document.activeElement.className")
    return name


def tab_to(page: Page, name: str) -> None:
    for _ in range(80):
        if focused(page) == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"no way to {name} by the tab key, only to {focused(page)}")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_drawing_by_keyboard(demo):
    page = demo.page
    press(page, "Tab")
    assert focused(page) == "skip"
    tab_to(page, "surface")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "draw-help"
    press(page, *["ArrowUp"] * 8, "Space", *["ArrowDown"] * 16, "Space")
    answered(page)
    view = seen(page)[..., 0]
    rows, columns = np.nonzero(view > 60)
    assert np.ptp(rows) > 3 * np.ptp(columns)
    press(page, "ArrowRight")  # the pen is up
    answered(page)
    np.testing.assert_array_equal(seen(page)[..., 0], view)
    assert page.evaluate("scrollY") == 0
    press(page, "Delete")
    answered(page, "idle")
    press(page, "Enter", *["Shift+ArrowRight"] * 3, "Escape", "ArrowDown")
    answered(page)
    rows, columns = np.nonzero(seen(page)[..., 0] > 60)
    assert np.ptp(columns) > 3 * np.ptp(rows)
    press(page, "Control+z")
    answered(page, "idle")


def test_everything_else_by_keyboard(demo):
    page = demo.page
    draw(page, DIGITS["1"])
    answered(page)
    for name in ("undo", "clear", "file"):
        tab_to(page, name)
    tab_to(page, "noise")
    press(page, "ArrowRight")
    assert page.locator("#noise-value").inner_text() == "0.05"
    tab_to(page, "turn")
    press(page, "ArrowRight")
    assert page.locator("#turn-value").inner_text() == "5°"
    tab_to(page, "sample")
    press(page, "Enter")
    page.wait_for_selector(".sample[aria-pressed=true]")
    answered(page)
    assert shown(page)["vacuity"] != "–"
    assert focused(page) == "sample"
    tab_to(page, "follow")
    press(page, "Space")
    assert not page.locator("#follow").is_checked()


def test_everything_has_a_name(demo):
    page = demo.page
    draw(page, DIGITS["2"])
    answered(page)
    nameless = page.evaluate("""
      () => [...document.querySelectorAll("button, input, select, canvas, img, svg, [role]")]
        .filter((node) => node.checkVisibility() && !node.closest("[aria-hidden=true]"))
        .filter((node) => node.getAttribute("role") !== "status")
        .filter((node) => !(node.ariaLabel || node.alt || node.labels?.length))
        .filter((node) => !(node.textContent.trim() || node.querySelector("img")?.alt))
        .map((node) => node.outerHTML)
    """)
    assert nameless == []
    ids: list[str] = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    rows = page.locator("#bars tbody th[scope=row]").count()
    assert rows == 11


def test_the_answer_stays_in_sight(opened):
    page = opened(viewport=PHONE).page
    pick(page, "unknown")
    dock = page.locator("#dock")
    assert dock.is_visible()
    assert page.locator("#headline").inner_text() in dock.inner_text()
    page.evaluate("document.getElementById('verdict').scrollIntoView()")
    dock.wait_for(state="hidden")
