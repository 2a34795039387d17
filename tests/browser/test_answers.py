"""What the page says: newest answers, other kinds of models, and what goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from browser.bundles import SPECIES, TREES
from browser.hands import answered, draw, offer, png, told, until
from browser.watched import TOKEN, Watched

if TYPE_CHECKING:
    from playwright.sync_api import Request, Route

pytestmark = pytest.mark.browser

PREDICT = "**/v1/predict"
DOT = [[(0.5, 0.5)]]  # enough to be asked about
REFUSED = "Failed to load resource"


def test_the_newest_answer_wins(demo: Watched) -> None:
    page = demo.page
    held: list[Route] = []
    given_up: list[Request] = []
    page.on("requestfailed", lambda request: given_up.append(request))
    page.route(PREDICT, lambda route: route.fallback() if held else held.append(route))
    draw(page, DOT)
    while not held:
        page.wait_for_timeout(20)
    draw(page, [[(0.2, 0.5), (0.8, 0.5)]])  # another picture
    answered(page)
    shown = page.locator("#headline").inner_text()
    assert held[0].request in given_up
    # Its answer, should it come all the same, finds nobody.
    held[0].fulfill(json=answer_of(label="too late"))
    page.wait_for_timeout(100)
    assert page.locator("#headline").inner_text() == shown


def fulfil(route: Route, **options: Any) -> None:
    route.fulfill(**options)


def answer_of(**changes: Any) -> dict[str, Any]:
    """A sound answer for ten classes, with changes that make it something else."""
    share = [0.1] * 10
    said = {
        "label": "3", "probability": 0.1, "probabilities": share, "belief": share, "vacuity": 0.5,
        "alpha": [1.0] * 10, "uncertainty": {"data": 1.0, "distributional": 0.5, "total": 1.5},
        "decision": "accept", "reason": "accepted", "why": "It is <b>3</b>.",
    }  # fmt: skip
    return {"predictions": [{**said, **changes}]}


def test_a_bad_answer_is_said(demo: Watched) -> None:
    page = demo.page
    bodies = [
        "no json at all",
        "{}",
        json.dumps({"predictions": []}),
        json.dumps(answer_of(probabilities=[0.5, 0.5])),
        json.dumps(answer_of(belief=["much"] * 10)),
        json.dumps(answer_of(uncertainty={})),
    ]
    for body in bodies:
        page.route(PREDICT, partial(fulfil, status=200, body=body))
        draw(page, DOT)
        answered(page, "error")
        assert "what came back makes no sense" in page.locator("#headline").inner_text(), body
        assert set(told(page)["belief"].values()) == {"–"}
        page.unroute_all()
        page.click("#again")
        answered(page)


def test_names_are_text_and_not_markup(demo: Watched) -> None:
    page = demo.page
    page.route(PREDICT, lambda route: route.fulfill(json=answer_of(label="<i>3</i>")))
    draw(page, DOT)
    answered(page)
    assert page.locator("#headline").inner_text() == "It’s <i>3</i>."
    assert page.locator("#why").inner_text().endswith("It is <b>3</b>.")


def test_a_refusal_is_said_in_words(demo: Watched) -> None:
    demo.expected = [REFUSED]
    page = demo.page
    refusals = {
        "too_large": (413, "too large"),
        "internal": (500, "No answer"),
        "timeout": (504, "took too long"),
        "not_ready": (503, "still starting"),
    }
    for code, (status, headline) in refusals.items():
        body = {"error": {"code": code, "message": f"this is {code}"}}
        page.route(PREDICT, partial(fulfil, status=status, json=body))
        draw(page, DOT)
        answered(page, "error")
        assert headline in page.locator("#headline").inner_text()
        assert page.locator("#why").inner_text().startswith(f"This is {code}. ")
        page.unroute_all()


def test_a_busy_service_is_asked_again(demo: Watched) -> None:
    demo.expected = [REFUSED]
    page = demo.page
    busy: list[float] = []

    def refuse(route: Route) -> None:
        if len(busy) == 2:
            route.fallback()
            return
        busy.append(time.monotonic())
        body = {"error": {"code": "busy", "message": "the queue is full"}}
        route.fulfill(status=503, json=body, headers={"retry-after": "1"})

    page.route(PREDICT, refuse)
    draw(page, DOT)
    page.wait_for_selector('#verdict[data-state="error"]')
    assert page.locator("#why").inner_text() == "Asking again in 1 s."
    answered(page)
    assert len(busy) == 2
    assert busy[1] - busy[0] >= 1


def test_a_service_that_is_gone(demo: Watched) -> None:
    demo.expected = [REFUSED]
    page = demo.page
    page.route(PREDICT, lambda route: route.abort("connectionrefused"))
    draw(page, DOT)
    answered(page, "error")
    assert "can’t be reached" in page.locator("#headline").inner_text()
    page.unroute(PREDICT)
    page.focus("#again")
    page.keyboard.press("Enter")
    answered(page)
    # The same when it is gone before the page knows the model.
    page.route("**/v1/model", lambda route: route.abort("connectionrefused"))
    page.reload()
    answered(page, "error")
    page.unroute_all()
    page.click("#again")
    page.wait_for_selector(".sample")
    answered(page, "idle")


def test_many_classes_and_no_policy(opened: Callable[..., Watched]) -> None:
    watched = opened("many")
    page = watched.page
    image = np.random.default_rng(1).integers(0, 255, (50, 30, 3), dtype=np.uint8)
    offer(page, "paste", ("a.png", "image/png", png(image)))
    assert answered(page) == "plain"
    assert page.locator("#headline").inner_text().startswith("Probably species ")
    belief = told(page)["belief"]
    assert len(belief) == 11
    assert list(belief)[-1] == "30 others"
    assert set(list(belief)[:10]) <= set(SPECIES)
    shares = [float(value) for value in list(belief.values())[:10]]
    assert shares == sorted(shares, reverse=True)
    masses = [*map(float, belief.values()), float(told(page)["vacuity"])]
    assert sum(masses) == pytest.approx(1, abs=0.07)
    assert page.locator("#corners option").count() == 3 * len(SPECIES)
    assert not page.locator("#gallery").is_visible()


def test_a_table_behind_a_token(opened: Callable[..., Watched]) -> None:
    watched = opened("table", ready=False)
    watched.expected = ["status of 401"]
    page = watched.page
    page.wait_for_selector("#token[open]")
    page.keyboard.type("something-wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This token was not accepted")
    page.fill("#token-value", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-ready]")
    # One field a column, filled in, and asked at once.
    assert page.locator("#row label").all_inner_texts() == ["height", "bark"]
    assert answered(page) == "plain"
    assert not page.locator("#surface").is_visible()
    assert page.locator("#beliefs-title").inner_text() == "Probability"
    assert page.locator("#bars tbody").first.locator("th").all_inner_texts() == list(TREES)
    assert page.locator("#kinds .value").all_inner_texts()[:2] == ["not told by this method"] * 2
    assert not page.locator("#triangle").is_visible()
    before = page.locator("#bars").inner_text()
    page.fill("#row input", "-300")
    until(page, f"document.getElementById('bars').innerText !== {json.dumps(before)}")
    page.fill("#row input", "")
    assert page.locator("#row-source").inner_text() == "Still open: height."
    with page.expect_download() as saved:  # the link alone would be refused
        page.click("#api")
    assert saved.value.suggested_filename == "openapi.json"
    described = json.loads(Path(saved.value.path()).read_text("utf-8"))
    assert "/v1/predict" in described["paths"]
    # The token is kept for this tab alone, and nowhere else.
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    page.wait_for_selector("body[data-ready]")
