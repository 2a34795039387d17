"""Inputs: drawings, images, the gallery and the sliders."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.browser.hands import (
    DIGITS,
    PREDICT,
    answered,
    draw,
    offer,
    pick,
    png,
    row,
    seen,
    sent,
    shown,
    text,
    until,
)

pytestmark = pytest.mark.browser

PHOTO = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)


# --- drawing --------------------------------------------------------------------------------------


def test_drawing_is_answered(demo):
    page = demo.page
    assert page.locator("#verdict").get_attribute("data-state") == "idle"
    draw(page, DIGITS["7"])
    answered(page)
    numbers = shown(page)
    assert list(numbers["belief"]) == [str(digit) for digit in range(10)]
    masses = [*map(float, numbers["belief"].values()), float(numbers["vacuity"])]
    assert sum(masses) == pytest.approx(1, abs=0.06)  # eleven rounded numbers
    aleatoric, epistemic, total = map(float, numbers["kinds"])
    assert aleatoric + epistemic == pytest.approx(total, abs=0.011)
    assert not page.locator("#hint").is_visible()
    until(page, "document.getElementById('live').textContent !== ''")
    spoken = page.locator("#live").text_content()  # by a screen reader
    assert spoken.startswith(text(page, "headline"))
    content = [files[0] for files in sent(page) if len(files) == 1][-1]  # not of a trace
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        np.testing.assert_array_equal(np.asarray(image.convert("L")), seen(page)[..., 0])


def test_drawn_digits_are_recognized(demo):
    page = demo.page
    correct, accepted = 0, 0
    for digit, strokes in DIGITS.items():
        draw(page, strokes)
        state = answered(page)
        correct += page.locator("#bars tr.first th").inner_text() == digit
        accepted += state == "accept"
        page.click("#clear")
        answered(page, "idle")
    assert correct >= 4
    assert accepted >= 2


def test_drawing_is_centered_and_scaled(demo):
    page = demo.page
    views = []
    for scale, shift in [(1.0, 0.0), (0.45, 0.05), (0.45, 0.5)]:
        draw(page, DIGITS["3"], scale, shift)
        answered(page)
        views.append(seen(page)[..., 0])
        page.click("#clear")
        answered(page, "idle")
    first = views[0]
    assert first.max() > 200
    for other in views[1:]:
        assert np.abs(other - first).mean() < 0.05 * first.mean()  # strokes of one width, too
    rows, columns = np.nonzero(first > 60)
    height, width = first.shape
    assert abs((columns.min() + columns.max()) / 2 - (width - 1) / 2) <= 0.1 * width
    assert rows.max() - rows.min() > 0.6 * height


def test_undo(demo):
    page = demo.page
    draw(page, DIGITS["4"][:1])
    answered(page)
    before = seen(page)
    draw(page, DIGITS["4"][1:])
    answered(page)
    assert np.abs(seen(page) - before).max() > 50
    page.click("#undo")
    answered(page)
    np.testing.assert_array_equal(seen(page), before)
    page.click("#undo")
    answered(page, "idle")
    assert page.locator("#undo").is_disabled()
    assert set(shown(page)["belief"].values()) == {"–"}


def test_touch_draws(opened):
    page = opened(has_touch=True, viewport={"width": 390, "height": 800}).page
    box = page.locator("#surface").bounding_box()
    client = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [
            {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]} for x, y in points
        ]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    top = page.evaluate("scrollY")
    touch("touchStart", (0.5, 0.2))
    for step in range(1, 9):
        touch("touchMove", (0.5, 0.2 + 0.075 * step))
    touch("touchEnd")
    answered(page)
    assert page.evaluate("scrollY") == top
    rows, columns = np.nonzero(seen(page)[..., 0] > 60)
    assert np.ptp(rows) > 3 * np.ptp(columns)


# --- images ---------------------------------------------------------------------------------------


def test_photo_classifier_has_a_chooser(opened):
    page = opened("photos").page
    assert text(page, "hint-title") == "Choose an image"
    assert not page.locator("#undo").is_visible()
    draw(page, DIGITS["1"][:1])  # opens the dialog, but draws nothing
    with page.expect_file_chooser() as chooser:
        page.click("#surface")
    content = png(PHOTO, "JPEG")
    chooser.value.set_files({"name": "lake.jpg", "mimeType": "image/jpeg", "buffer": content})
    answered(page)
    assert sent(page)[0] == [content]
    assert text(page, "source") == "“lake.jpg”"
    assert seen(page).shape == (24, 32, 4)
    page.click("#clear")
    answered(page, "idle")


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_only_an_image_is_sent(demo, event):
    page = demo.page
    assert offer(page, event, ("notes.txt", "text/plain", b"buy milk"))
    assert "“notes.txt” is not an image" in text(page, "source")
    assert offer(page, event, text="buy milk")
    assert "text, not an image" in text(page, "source")
    assert offer(page, event)
    assert "There is no image" in text(page, "source")
    content = png(PHOTO)
    assert offer(page, event, ("shot.png", "image/png", content))
    answered(page)
    assert sent(page)[0] == [content]
    view = seen(page)[..., 0]
    height, width = view.shape
    image = Image.fromarray(PHOTO).convert("L").resize((width, height), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(view, np.asarray(image, dtype=float), atol=1.5)
    target = page.locator(".drop")
    offer(page, "dragenter", text="x")
    assert target.is_visible()
    offer(page, "dragleave")
    assert not target.is_visible()


def test_damaged_image(demo):
    demo.expected = ["status of 422"]
    offer(demo.page, "paste", ("a.png", "image/png", png(PHOTO)[:300]))
    answered(demo.page, "error")
    assert "cannot read this input" in text(demo.page, "headline")
    draw(demo.page, DIGITS["1"])
    answered(demo.page)


def test_large_file_is_reduced(opened):
    page = opened("species").page
    content = png(np.full((300, 300, 3), 200, np.uint8), "BMP")  # 270 kB of 200 kB allowed
    page.set_input_files("#file", {"name": "a.bmp", "mimeType": "image/bmp", "buffer": content})
    answered(page)
    with Image.open(io.BytesIO(sent(page)[0][0])) as image:
        assert image.size == (16, 16)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), 200)


def test_drawing_on_an_image(demo):
    page = demo.page
    offer(page, "paste", ("a.png", "image/png", png(np.zeros((28, 28), np.uint8))))
    answered(page)
    assert seen(page)[..., :3].max() == 0
    draw(page, [[(0.5, 0.1), (0.5, 0.9)]])
    answered(page)
    view = seen(page)[..., 0]
    assert view[:, view.shape[1] // 2].mean() > 100  # where it was drawn, not centered
    assert view[:, : view.shape[1] // 3].max() == 0


# --- gallery and sliders --------------------------------------------------------------------------


def test_gallery(demo):
    page = demo.page
    states: dict[str, list[str]] = {"known": [], "unknown": []}
    for kind, results in states.items():
        results += [pick(page, kind, place) for place in range(6)]
    assert states["known"].count("accept") > 3
    assert states["unknown"].count("abstain") > 3


def test_sample_is_dragged_to_the_canvas(demo):
    page = demo.page
    page.locator(".group.known .sample").nth(1).drag_to(page.locator("#surface"))
    page.wait_for_selector(".sample[aria-pressed=true]")
    answered(page)
    assert text(page, "source") == "Known classes: class 0."


def test_noise_and_rotation(demo):
    page = demo.page
    pick(page, "known")
    before, vacuity = seen(page), float(shown(page)["vacuity"])
    page.focus("#noise")
    page.keyboard.press("End")
    assert text(page, "noise-value") == "1.00"
    answered(page)
    assert float(shown(page)["vacuity"]) > vacuity
    assert np.abs(seen(page) - before).mean() > 20
    page.keyboard.press("Home")
    page.focus("#turn")
    page.keyboard.press("End")
    assert text(page, "turn-value") == "180°"
    answered(page)
    np.testing.assert_allclose(seen(page), before[::-1, ::-1], atol=1)
    page.click("#clear")
    assert text(page, "turn-value") == "0°"


def test_traces(demo):
    page = demo.page
    doubts = [0.1 + k / 20 for k in range(13)]
    rows = [row(vacuity=doubt, accepted=doubt < 0.33) for doubt in doubts]

    def respond(route: object) -> None:
        count = (route.request.post_data_buffer or b"").count(b"filename=")
        route.fulfill(json={"predictions": rows[:count]})

    page.route(PREDICT, respond)
    page.locator(".group.known .sample").first.click()
    for name in ("noise", "turn"):
        page.wait_for_selector(f"#{name}-trace circle >> nth=12", state="attached")
    assert page.locator("#noise-trace circle.yes").count() == 5
    assert text(page, "noise-reading") == "Vacuity 0.10 → 0.70; abstains from 0.42 on."
