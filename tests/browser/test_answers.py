"""Answers: each kind of model, each decision, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.browser.hands import answered, draw, offer, png, row, shown, text, until
from tests.browser.models import SPECIES, TREES
from tests.browser.service import TOKEN
from tests.browser.watched import Watched

if TYPE_CHECKING:
    from playwright.sync_api import Request, Route

pytestmark = pytest.mark.browser

PREDICT = "**/v1/predict*"
DOT = [[(0.5, 0.5)]]
REFUSED = "Failed to load resource"


def respond(route: Route, **options: Any) -> None:
    route.fulfill(**options)


def show(watched: Watched, **changes: Any) -> tuple[str, str, str]:
    """Return stamp, headline and reason that the page shows for a row."""
    page = watched.page
    page.unroute_all()
    page.route(PREDICT, partial(respond, json={"predictions": [row(**changes)]}))
    draw(page, DOT)
    answered(page)
    return text(page, "stamp"), text(page, "headline"), text(page, "why")


# --- decisions ------------------------------------------------------------------------------------


def test_accepted(demo: Watched) -> None:
    stamp, headline, why = show(demo, epistemic=0.02)
    assert (stamp, headline) == ("✓ Accepted", "It’s 3.")
    assert why.startswith("Probability 10%. Familiar: its epistemic uncertainty, 0.020, is within")


def test_guarantee(demo: Watched) -> None:
    expected = "an error rate of at most 2% among accepted predictions, with confidence 95%"
    assert expected in text(demo.page, "policy")


def test_accepted_is_not_called_familiar_without_an_ood_threshold(
    opened: Callable[..., Watched],
) -> None:
    watched = opened(ready=False)

    def without(route: Route) -> None:
        model = route.fetch().json()
        model["policy"]["ood_threshold"] = None
        route.fulfill(json=model)

    watched.page.route("**/v1/model", without)
    watched.page.reload()
    watched.page.wait_for_selector("body[data-ready]")
    assert show(watched)[2] == "Probability 10%."


def test_ambiguous(demo: Watched) -> None:
    probs = {**{str(k): 0.0 for k in range(10)}, "3": 0.55, "8": 0.45}
    changes = {"probs": probs, "probability": 0.55, "accepted": False, "reason": "ambiguous"}
    stamp, headline, why = show(demo, **changes)
    assert stamp == "? Abstained"
    assert headline == "I’m not sure: 3 or 8."
    assert why.startswith("Not certain enough for an error rate of at most 2%. Best guess: 3.")


def test_unfamiliar(demo: Watched) -> None:
    _, headline, why = show(demo, accepted=False, reason="unfamiliar")
    assert headline == "I don’t know: not like anything seen in training."
    assert why.startswith("Its epistemic uncertainty, 0.500, is above the limit of ")
    assert "guess" not in why
    cells = demo.page.locator("#bars .first td:nth-child(4)")
    assert cells.inner_text() == "(10%)"  # not calibrated for such inputs


def test_names_are_text(demo: Watched) -> None:
    assert show(demo, prediction="<i>3</i>")[1] == "It’s <i>3</i>."


# --- kinds of models ------------------------------------------------------------------------------


def test_many_classes_without_a_policy(opened: Callable[..., Watched]) -> None:
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


def test_table_behind_a_token(opened: Callable[..., Watched]) -> None:
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
    assert page.locator("#row label").all_inner_texts() == ["height", "girth", "bark"]
    with page.expect_download() as saved:  # a link has no token
        page.click("#api")
    described = json.loads(Path(saved.value.path()).read_text("utf-8"))
    assert "/v1/predict" in described["paths"]
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    page.wait_for_selector("body[data-ready]")


@pytest.fixture
def table(opened: Callable[..., Watched]) -> Watched:
    """Return the page of the table, with its token."""
    watched = opened("table", ready=False)
    watched.expected = ["status of 401"]
    watched.page.wait_for_selector("#token[open]")
    watched.page.fill("#token-value", TOKEN)
    watched.page.keyboard.press("Enter")
    answered(watched.page)
    return watched


def test_table_has_a_form(table: Watched) -> None:
    page = table.page
    assert not page.locator("#surface").is_visible()
    assert not page.locator("#triangle").is_visible()  # softmax has no evidence
    assert text(page, "beliefs-title") == "Probability"
    assert page.locator("#bars tbody").first.locator("th").all_inner_texts() == list(TREES)
    before = text(page, "bars")
    page.fill("#field-0", "30")
    until(page, f"document.getElementById('bars').innerText !== {json.dumps(before)}")


def test_text_has_a_box(opened: Callable[..., Watched]) -> None:
    page = opened("reviews").page
    assert page.locator("#verdict").get_attribute("data-state") == "idle"
    page.fill("#text", "the music was wonderful, a day")
    assert answered(page) == "accept"
    assert page.locator("#bars tr.first th").inner_text() == "good"
    page.fill("#text", "zzz yyy xxx")
    until(page, "document.getElementById('verdict').dataset.state === 'abstain'")
    page.fill("#text", "  ")
    answered(page, "idle")


def test_missing_values_of_a_table(table: Watched) -> None:
    page = table.page
    page.fill("#field-1", "")  # never missing in training
    assert text(page, "row-source") == "Enter a number: girth."
    page.fill("#field-1", "1")
    page.fill("#field-0", "")
    assert text(page, "row-source") == ""
    answered(page)


def test_value_out_of_range(table: Watched) -> None:
    page = table.page
    page.fill("#field-0", "900")
    page.wait_for_selector("text=I don’t know: a value is out of range.")
    assert "height is 900, far from" in text(page, "why")


def test_regression_has_value_and_interval(opened: Callable[..., Watched]) -> None:
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


def test_several_targets(opened: Callable[..., Watched]) -> None:
    page = opened("targets").page
    page.fill("#json", "[1, 2")
    page.click("#row button")
    assert text(page, "row-source").startswith("This is not JSON")
    page.fill("#json", "[0.1, 0.2, 0.3, 0.4]")
    page.click("#row button")
    assert answered(page) == "plain"
    assert page.locator("#intervals h4").all_inner_texts() == ["width", "depth"]


# --- errors ---------------------------------------------------------------------------------------


def test_newest_answer_wins(demo: Watched) -> None:
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
def test_invalid_response(demo: Watched, body: str) -> None:
    page = demo.page
    page.route(PREDICT, partial(respond, status=200, body=body))
    draw(page, DOT)
    answered(page, "error")
    assert "the response is not valid" in text(page, "headline")
    assert set(shown(page)["belief"].values()) == {"–"}
    page.unroute_all()
    page.click("#again")
    answered(page)


@pytest.mark.parametrize(
    ("status", "headline"), [(413, "too large"), (500, "No answer."), (504, "took too long")]
)
def test_refusal_in_words(demo: Watched, status: int, headline: str) -> None:
    demo.expected = [REFUSED]
    page = demo.page
    page.route(PREDICT, partial(respond, status=status, json={"detail": "this is the reason"}))
    draw(page, DOT)
    answered(page, "error")
    assert headline in text(page, "headline")
    assert text(page, "why").startswith("This is the reason. ")


def test_row_with_an_error(demo: Watched) -> None:
    page = demo.page
    rows = [{"error": "the outputs are not finite"}]
    page.route(PREDICT, partial(respond, json={"predictions": rows}))
    draw(page, DOT)
    answered(page, "error")
    assert text(page, "why").startswith("The outputs are not finite. ")


def test_busy_service_is_asked_again(demo: Watched) -> None:
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


def test_unreachable_service(demo: Watched) -> None:
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


def test_unreachable_before_the_model_is_known(demo: Watched) -> None:
    demo.expected = [REFUSED]
    page = demo.page
    page.route("**/v1/model", lambda route: route.abort("connectionrefused"))
    page.reload()
    answered(page, "error")
    page.unroute_all()
    page.click("#again")
    page.wait_for_selector(".sample")
    answered(page, "idle")
