"""What a person shows the page, and that the model sees what was meant."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from browser.hands import DIGITS, answered, draw, offer, png, seen, sent, told, until
from browser.watched import Watched

pytestmark = pytest.mark.browser

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 255, (40, 60, 3), dtype=np.uint8)


def test_a_drawing_is_answered(demo: Watched) -> None:
    page = demo.page
    assert page.locator("#verdict").get_attribute("data-state") == "idle"
    draw(page, DIGITS["7"])
    answered(page)
    numbers = told(page)
    assert list(numbers["belief"]) == list(DIGITS)
    masses = [*map(float, numbers["belief"].values()), float(numbers["vacuity"])]
    assert sum(masses) == pytest.approx(1, abs=0.06)  # eleven roundings
    data, distributional, total = map(float, numbers["kinds"])
    assert data + distributional == pytest.approx(total, abs=0.011)
    # What was said aloud is what stands there.
    until(page, "document.getElementById('live').textContent !== ''")
    headline = page.locator("#headline").inner_text()
    assert page.locator("#live").text_content().startswith(headline)  # type: ignore[union-attr]
    assert not page.locator("#hint").is_visible()
    view = seen(page)
    content = [files[0] for files in sent(page) if len(files) == 1][-1]  # others are the traces'
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        np.testing.assert_array_equal(np.asarray(image.convert("L")), view[..., 0])


def test_drawn_digits_are_read(demo: Watched) -> None:
    page = demo.page
    right, accepted = 0, 0
    for digit, strokes in DIGITS.items():
        draw(page, strokes)
        state = answered(page)
        right += page.locator("#bars tr.first th").inner_text() == digit
        accepted += state == "accept"
        page.click("#clear")
        answered(page, "idle")
    assert right >= 9
    assert accepted >= 5


def test_a_drawing_is_centred_and_scaled(demo: Watched) -> None:
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


def test_undo_takes_strokes_back(demo: Watched) -> None:
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
    assert set(told(page)["belief"].values()) == {"–"}


def test_touch_draws(opened: Callable[..., Watched]) -> None:
    watched = opened(has_touch=True, viewport={"width": 390, "height": 800})
    page = watched.page
    box = page.locator("#surface").bounding_box()
    assert box is not None
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
    assert page.evaluate("scrollY") == top  # the finger drew, and did not scroll
    rows, columns = np.nonzero(seen(page)[..., 0] > 60)
    assert np.ptp(rows) > 3 * np.ptp(columns)


def test_a_chosen_file_goes_as_it_is(demo: Watched) -> None:
    content = png(PHOTO, "JPEG")
    file = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": content}
    demo.page.set_input_files("#file", file)  # type: ignore[arg-type]
    answered(demo.page)
    assert sent(demo.page)[0] == [content]
    assert "a.jpg" in demo.page.locator("#source").inner_text()


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_an_image_is_pasted_or_dropped(demo: Watched, event: str) -> None:
    content = png(PHOTO)
    assert offer(demo.page, event, ("shot.png", "image/png", content))
    answered(demo.page)
    assert sent(demo.page)[0] == [content]


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_what_is_no_image_is_said_and_not_sent(demo: Watched, event: str) -> None:
    page = demo.page
    source = page.locator("#source")
    assert offer(page, event, ("notes.txt", "text/plain", b"buy milk"))
    assert "“notes.txt” is no image" in source.inner_text()
    assert offer(page, event, text="buy milk")
    assert "is text, not an image" in source.inner_text()
    assert offer(page, event)
    assert "no image in what was" in source.inner_text()
    page.wait_for_timeout(200)
    assert demo.asked() == 0
    assert page.locator("#verdict").get_attribute("data-state") == "idle"


def test_a_drop_is_announced(demo: Watched) -> None:
    target = demo.page.locator(".drop")
    assert not target.is_visible()
    offer(demo.page, "dragenter", text="x")
    assert target.is_visible()
    offer(demo.page, "dragleave")
    assert not target.is_visible()


def test_a_damaged_image_is_explained_by_the_service(demo: Watched) -> None:
    demo.expected = ["status of 422"]
    broken = png(PHOTO)[:300]
    offer(demo.page, "paste", ("a.png", "image/png", broken))
    answered(demo.page, "error")
    assert "not an image the service can read" in demo.page.locator("#headline").inner_text()
    # The next one is answered.
    draw(demo.page, DIGITS["1"])
    answered(demo.page)


def test_a_format_that_the_browser_does_not_know(demo: Watched) -> None:
    page, content = demo.page, png(PHOTO, "TIFF")
    page.set_input_files("#file", {"name": "a.tiff", "mimeType": "image/tiff", "buffer": content})
    answered(page)
    assert sent(page) == [[content]]
    assert page.locator("#source").inner_text() == "“a.tiff” This browser can’t show it."
    page.click("#clear")
    answered(page, "idle")


def test_a_file_too_large_to_send_is_made_smaller(opened: Callable[..., Watched]) -> None:
    page = opened("many").page
    content = png(np.full((300, 300, 3), 200, np.uint8), "BMP")  # 270 kB, of 200 kB allowed
    page.set_input_files("#file", {"name": "a.bmp", "mimeType": "image/bmp", "buffer": content})
    answered(page)
    with Image.open(io.BytesIO(sent(page)[0][0])) as image:
        assert image.size == (16, 16)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), 200)


def test_strokes_go_on_an_image(demo: Watched) -> None:
    page = demo.page
    offer(page, "paste", ("a.png", "image/png", png(np.zeros((28, 28), np.uint8))))
    answered(page)
    assert seen(page)[..., :3].max() == 0
    draw(page, [[(0.5, 0.1), (0.5, 0.9)]])
    answered(page)
    view = seen(page)[..., 0]
    assert view[:, view.shape[1] // 2].mean() > 100  # where it was drawn, not centred
    assert view[:, : view.shape[1] // 3].max() == 0


def test_the_page_resizes_as_the_service_does(demo: Watched) -> None:
    page = demo.page
    offer(page, "paste", ("a.png", "image/png", png(PHOTO)))
    answered(page)
    view = seen(page)[..., 0]
    height, width = view.shape
    image = Image.fromarray(PHOTO).convert("L").resize((width, height), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(view, np.asarray(image, dtype=float), atol=1.5)


def test_the_gallery(demo: Watched) -> None:
    page = demo.page
    states: dict[str, list[str]] = {}
    for kind in ("known", "unknown"):
        samples = page.locator(f".group.{kind} .sample")
        count = min(samples.count(), 6)
        assert count > 0
        states[kind] = []
        for place in range(count):
            samples.nth(place).click()
            states[kind].append(answered(page))
            assert samples.nth(place).get_attribute("aria-pressed") == "true"
    assert states["known"].count("accept") > len(states["known"]) / 2
    assert states["unknown"].count("abstain") > len(states["unknown"]) / 2


def test_a_sample_is_dragged_to_the_easel(demo: Watched) -> None:
    page = demo.page
    page.locator(".group.known .sample").nth(1).drag_to(page.locator("#surface"))
    page.wait_for_selector(".sample[aria-pressed=true]")
    answered(page)
    assert page.locator("#source").inner_text().startswith("Test digits: in truth ")


def test_sliders_show_the_uncertainty_rise(demo: Watched) -> None:
    page = demo.page
    page.locator(".group.known .sample").first.click()
    answered(page)
    plain = float(told(page)["vacuity"])
    until(page, "document.querySelectorAll('#noise-trace circle').length === 13")
    until(page, "document.querySelectorAll('#turn-trace circle').length === 13")
    before = seen(page)
    page.focus("#noise")
    page.keyboard.press("End")
    assert page.locator("#noise-value").inner_text() == "1.00"
    answered(page)
    noisy = float(told(page)["vacuity"])
    assert noisy > plain
    assert np.abs(seen(page) - before).mean() > 20
    reading = page.locator("#noise-reading").inner_text()
    first, last = (float(word) for word in reading.split(";")[0].split() if word[0].isdigit())
    assert first == pytest.approx(plain, abs=0.05)
    assert last == pytest.approx(noisy, abs=0.05)
    # The trace of its own slider was not asked for again; that of the other was.
    page.wait_for_timeout(600)
    traced = [len(files) for files in sent(page)].count(13)
    assert traced == 3
    page.keyboard.press("Home")
    page.focus("#turn")
    page.keyboard.press("End")
    assert page.locator("#turn-value").inner_text() == "180°"
    answered(page)
    np.testing.assert_allclose(seen(page), before[::-1, ::-1], atol=1)
    # A new image begins undisturbed.
    page.click("#clear")
    assert page.locator("#turn-value").inner_text() == "0°"
