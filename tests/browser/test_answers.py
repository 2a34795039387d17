"""Answers: each kind of model, each decision, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.browser.hands import (
    PREDICT,
    answered,
    draw,
    offer,
    png,
    respond,
    row,
    show,
    shown,
    text,
    until,
)
from tests.browser.models import SPECIES, TREES
from tests.browser.service import TOKEN
from tests.browser.watched import Watched

if TYPE_CHECKING:
    from playwright.sync_api import Request, Route

pytestmark = pytest.mark.browser

DOT = [[(0.5, 0.5)]]
REFUSED = "Failed to load resource"


# --- decisions ------------------------------------------------------------------------------------


def test_accepted(demo):
    stamp, headline, why = show(demo.page, prediction="<i>3</i>", epistemic=0.02)
    assert (stamp, headline) == ("✓ Accepted", "It’s <i>3</i>.")  # names are text
    assert why.startswith("Probability 10%. Familiar: its epistemic uncertainty, 0.020, is within")
    guarantee = "an error rate of at most 2% among accepted predictions, with confidence 95%"
    assert guarantee in text(demo.page, "policy")


def test_accepted_is_not_called_familiar_without_an_ood_threshold(
    opened,
):
    watched = opened(ready=False)

    def without(route: Route) -> None:
        model = route.fetch().json()
        model["policy"]["ood_threshold"] = None
        route.fulfill(json=model)

    watched.page.route("**/v1/model", without)
    watched.page.reload()
    watched.page.wait_for_selector("body[data-ready]")
    assert show(watched.page)[2] == "Probability 10%."


def test_ambiguous(demo):
    probs = {**{str(k): 0.0 for k in range(10)}, "3": 0.55, "8": 0.45}
    changes = {"probs": probs, "probability": 0.55, "accepted": False, "reason": "ambiguous"}
    stamp, headline, why = show(demo.page, **changes)
    assert stamp == "? Abstained"
    assert headline == "I’m not sure: 3 or 8."
    assert why.startswith("Not certain enough for an error rate of at most 2%. Best guess: 3.")


def test_unfamiliar(demo):
    _, headline, why = show(demo.page, accepted=False, reason="unfamiliar")
    assert headline == "I don’t know: not like anything seen in training."
    assert why.startswith("Its epistemic uncertainty, 0.500, is above the limit of ")
    assert "guess" not in why
    cells = demo.page.locator("#bars .first td:nth-child(4)")
    assert cells.inner_text() == "(10%)"  # not calibrated for such inputs


# --- kinds of models ------------------------------------------------------------------------------


def test_many_classes_without_a_policy(opened):
    page = opened("species").page
    image = np.random.default_rng(1).integers(0, 255, (50, 30, 3), dtype=np.uint8)
    offer(page, "paste", ("a.png", "image/png", png(image)))
    assert answered(page) == "plain"
    assert text(page, "headline").startswith("Probably species ")
    belief = shown(page)["belief"]
    assert len(belief) == 11
    assert list(belief)[-1] == "30 others"
    assert set(list(belief)[:10]) <= set(SPECIES)
    shares = [float(value) for value in list(belief.values())[:10]]
    assert shares == sorted(shares, reverse=True)
    masses = [*map(float, belief.values()), float(shown(page)["vacuity"])]
    assert sum(masses) == pytest.approx(1, abs=0.07)
    assert page.locator("#corners option").count() == 3 * len(SPECIES)
    assert not page.locator("#gallery").is_visible()


def test_token_stays_in_the_tab(table):
    page = table.page
    with page.expect_download() as saved:  # a link has no token
        page.click("#api")
    described = json.loads(Path(saved.value.path()).read_text("utf-8"))
    assert "/v1/predict" in described["paths"]
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    page.wait_for_selector("body[data-ready]")


@pytest.fixture
def table(opened: Callable[..., Watched]) -> Watched:
    """Return the page of the table, which asks for a token until it is right."""
    watched = opened("table", ready=False)
    watched.expected = ["status of 401"]
    page = watched.page
    page.wait_for_selector("#token[open]")
    page.fill("#token-value", "something-wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This token was not accepted")
    page.fill("#token-value", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-ready]")
    answered(page)
    return watched


def test_table_has_a_form(table):
    page = table.page
    assert not page.locator("#surface").is_visible()
    assert not page.locator("#triangle").is_visible()  # softmax has no evidence
    assert text(page, "beliefs-title") == "Probability"
    assert page.locator("#row label").all_inner_texts() == ["height", "girth", "bark"]
    assert page.locator("#bars tbody").first.locator("th").all_inner_texts() == list(TREES)
    before = text(page, "bars")
    page.fill("#field-0", "30")
    until(page, f"document.getElementById('bars').innerText !== {json.dumps(before)}")
    page.fill("#field-1", "")  # never missing in training
    assert text(page, "row-source") == "Enter a number: girth."
    page.fill("#field-1", "1")
    page.fill("#field-0", "")
    assert text(page, "row-source") == ""
    answered(page)
    page.fill("#field-0", "900")
    page.wait_for_selector("text=I don’t know: a value is out of range.")
    assert "height is 900, far from" in text(page, "why")


def test_text_has_a_box(opened):
    page = opened("reviews").page
    assert page.locator("#verdict").get_attribute("data-state") == "idle"
    page.fill("#text", "the music was wonderful, a day")
    assert answered(page) == "accept"
    assert page.locator("#bars tr.first th").inner_text() == "good"
    page.fill("#text", "zzz yyy xxx")
    until(page, "document.getElementById('verdict').dataset.state === 'abstain'")
    page.fill("#text", "  ")
    answered(page, "idle")


def test_regression_has_value_and_interval(opened):
    page = opened("regression").page
    assert answered(page) == "accept"
    value = float(text(page, "headline").removeprefix("age: "))
    assert "90% interval: " in text(page, "why")
    words = page.locator("#intervals .reading").inner_text().rstrip(".").split()
    low, high = float(words[-3]), float(words[-1])
    assert low < value < high
    assert not page.locator("#beliefs").is_visible()
    ends = page.evaluate("""() => [".range", ".point", ".track"].map((selector) => {
      const box = document.querySelector(selector).getBoundingClientRect();
      return [box.left, box.right];
    })""")
    (left, right), (start, end), track = ends
    assert track[0] < left < start < end < right < track[1]


def test_several_targets(opened):
    page = opened("targets").page
    page.fill("#json", "[1, 2")
    page.click("#row button")
    assert text(page, "row-source").startswith("This is not JSON")
    page.fill("#json", "[0.1, 0.2, 0.3, 0.4]")
    page.click("#row button")
    assert answered(page) == "plain"
    assert page.locator("#intervals h4").all_inner_texts() == ["width", "depth"]


# --- errors ---------------------------------------------------------------------------------------


def test_newest_answer_wins(demo):
    page = demo.page
    first: list[Route] = []
    aborted: list[Request] = []
    page.on("requestfailed", lambda request: aborted.append(request))
    page.route(PREDICT, lambda route: route.fallback() if first else first.append(route))
    draw(page, DOT)
    while not first:
        page.wait_for_timeout(20)
    draw(page, [[(0.2, 0.5), (0.8, 0.5)]])
    answered(page)
    assert first[0].request in aborted


@pytest.mark.parametrize(
    "body",
    [
        "not JSON",
        "{}",
        json.dumps({"predictions": []}),
        json.dumps({"predictions": [row(probs={"0": 0.5})]}),
        json.dumps({"predictions": [row(alpha=dict.fromkeys("0123456789", "much"))]}),
        json.dumps({"predictions": [row(total=None)]}),
    ],
)
def test_invalid_response(demo, body):
    page = demo.page
    respond(page, body=body)
    draw(page, DOT)
    answered(page, "error")
    assert "the response is not valid" in text(page, "headline")
    assert set(shown(page)["belief"].values()) == {"–"}
    page.unroute_all()
    page.click("#again")
    answered(page)


@pytest.mark.parametrize(
    ("status", "answer", "headline"),
    [
        (413, {"detail": "this is the reason"}, "too large"),
        (500, {"detail": "this is the reason"}, "No answer."),
        (504, {"detail": "this is the reason"}, "took too long"),
        (200, {"predictions": [{"error": "this is the reason"}]}, ""),
    ],
)
def test_refusal_in_words(demo, status, answer, headline):
    demo.expected = [REFUSED]
    page = demo.page
    respond(page, status=status, json=answer)
    draw(page, DOT)
    answered(page, "error")
    assert headline in text(page, "headline")
    assert text(page, "why").startswith("This is the reason. ")


def test_busy_service_is_asked_again(demo):
    demo.expected = [REFUSED]
    page = demo.page
    refused: list[str] = []

    def refuse(route: Route) -> None:
        if len(refused) == 2:
            route.fallback()
            return
        refused.append(route.request.url)
        route.fulfill(status=503, json={"detail": "too many"}, headers={"retry-after": "1"})

    page.route(PREDICT, refuse)
    draw(page, DOT)
    page.wait_for_selector("text=Trying again in 1 s.")
    answered(page)
    assert len(refused) == 2


def test_unreachable_service(demo):
    demo.expected = [REFUSED]
    page = demo.page
    page.route(PREDICT, lambda route: route.abort("connectionrefused"))
    draw(page, DOT)
    answered(page, "error")
    assert "cannot be reached" in text(page, "headline")
    page.unroute(PREDICT)
    page.focus("#again")
    page.keyboard.press("Enter")
    answered(page)


def test_unreachable_before_the_model_is_known(demo):
    demo.expected = [REFUSED]
    page = demo.page
    page.route("**/v1/model", lambda route: route.abort("connectionrefused"))
    page.reload()
    answered(page, "error")
    page.unroute_all()
    page.click("#again")
    page.wait_for_selector(".sample")
    answered(page, "idle")
