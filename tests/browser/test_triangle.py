"""The Dirichlet distribution on the triangle, against SciPy."""

import math

import numpy as np
import pytest
from scipy import special, stats

from tests.browser.hands import DIGITS, answered, draw, show

pytestmark = pytest.mark.browser

EXCESS = """
async ([alpha, points]) => {
  const { logExcess } = await import("/static/dirichlet.js");
  const excess = logExcess(alpha);
  return points.map((x) => excess(...x.map(Math.log)));
}
"""
GAMMA = """
async (values) => {
  const { logGamma } = await import("/static/dirichlet.js");
  return values.map(logGamma);
}
"""
PIXEL = """
([x, y]) => {
  const context = document.getElementById("simplex").getContext("2d");
  return Array.from(context.getImageData(x, y, 1, 1).data);
}
"""


def test_log_gamma_and_density(demo):
    values = [*np.geomspace(1e-3, 1e7, 60), 0.5, 1, 2]
    found = demo.page.evaluate(GAMMA, [float(value) for value in values])
    np.testing.assert_allclose(found, special.gammaln(values), rtol=1e-12, atol=1e-12)
    rng = np.random.default_rng(0)
    points = rng.dirichlet([1, 1, 1], 20)
    for alpha in ([1, 1, 1], [0.4, 2, 7], [12.5, 1, 1], [900, 300, 4], [2e5, 3e5, 1e5]):
        seen = demo.page.evaluate(EXCESS, [alpha, points.tolist()])
        wanted = [stats.dirichlet.logpdf(x / x.sum(), alpha) - math.log(2) for x in points]
        np.testing.assert_allclose(seen, wanted, rtol=1e-9, atol=1e-7)


def test_corners_follow_and_can_be_chosen(demo):
    page = demo.page
    draw(page, DIGITS["7"])
    answered(page)
    probs = page.locator("#bars tbody").first.locator("td:nth-child(4)").all_inner_texts()
    best = page.locator("#bars tr.first th").inner_text()
    selects = page.locator("#corners select")
    corners = [selects.nth(i).input_value() for i in range(3)]
    assert corners[0] == best
    assert len(set(corners)) == 3
    assert len(probs) == 10
    # The corner that had the class gets the other one.
    selects.nth(0).select_option(corners[1])
    assert [selects.nth(i).input_value() for i in range(3)] == [corners[1], corners[0], corners[2]]
    assert not page.locator("#follow").is_checked()
    label = page.locator("#simplex").get_attribute("aria-label")
    assert label.startswith(
        f"Density of the Dirichlet distribution over {corners[1]}, {corners[0]}"
    )
    page.check("#follow")
    assert [selects.nth(i).input_value() for i in range(3)] == corners


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_color_is_the_density(opened, scheme):
    page = opened(color_scheme=scheme).page

    def painted(alpha: list[float], at: tuple[int, int]) -> list[int]:
        probs = {"0": 0.5, "1": 0.3, "2": 0.2, **{str(k): 0.0 for k in range(3, 10)}}
        alphas = {str(k): a for k, a in enumerate([*alpha, *[1.0] * 7])}
        show(page, prediction="0", probs=probs, alpha=alphas)
        text = ", ".join(f"{k}: {a:.1f}" for k, a in enumerate(alpha))
        page.wait_for_selector(f"text=Alpha: {text}.")
        return page.evaluate(PIXEL, list(at))[:3]

    def ramp(place: float) -> list[float]:
        names = [f"--ramp-{i}" for i in range(5)]
        style = "n => getComputedStyle(document.documentElement).getPropertyValue(n)"
        stops = [page.evaluate(style, name).strip() for name in names]
        colors = [[int(stop[i : i + 2], 16) for stop in stops] for i in (1, 3, 5)]
        return [np.interp(4 * place, range(5), color) for color in colors]

    # Class 0 is at the top; the density without evidence is the middle of the ramp.
    width, top, side = 680, 66, 588
    at = (width // 2, round(top + 0.3 * side * math.sqrt(3) / 2))
    x = 1 - (at[1] + 0.5 - top) / (side * math.sqrt(3) / 2)
    np.testing.assert_allclose(painted([1.0, 1.0, 1.0], at), ramp(0.5), atol=3)
    log = stats.dirichlet.logpdf([x, (1 - x) / 2, (1 - x) / 2], [9.0, 1.5, 2.0]) - math.log(2)
    place = (log + math.log(1000)) / (2 * math.log(1000))
    np.testing.assert_allclose(painted([9.0, 1.5, 2.0], at), ramp(place), atol=4)
