from __future__ import annotations

import itertools
import math

import pytest

from gence.lab.spec import anchor_shares, average_shares, learning_rates
from gence.lab.spec.recipe import RECIPES, Recipe


def test_the_paper_drops_the_rate_at_100_and_150_of_200_epochs():
    rates = learning_rates(RECIPES["paper"], steps_per_epoch=20)
    assert len(rates) == 200 * 20
    warm = 20  # one epoch in which it rises, which is not printed: see gence.paper.studies.open_choices
    assert rates[warm:2000] == pytest.approx([0.1] * (2000 - warm))
    assert rates[2000:3000] == pytest.approx([0.01] * 1000)
    assert rates[3000:] == pytest.approx([0.001] * 1000)


def test_warm_up_rises_linearly_to_the_rate_and_no_further():
    rates = learning_rates(Recipe(epochs=10, lr=0.5, warmup_epochs=2, schedule="constant"), steps_per_epoch=5)
    assert rates[:10] == pytest.approx([0.05 * (step + 1) for step in range(10)])
    assert rates[10:] == pytest.approx([0.5] * 40)


def test_cosine_begins_at_the_rate_after_warm_up_and_ends_near_zero():
    rates = learning_rates(Recipe(epochs=20, lr=0.2, warmup_epochs=2, schedule="cosine"), steps_per_epoch=10)
    assert rates[20] == pytest.approx(0.2)
    assert rates[110] == pytest.approx(0.1)
    assert 0 < rates[-1] < 0.2 * 1e-3
    assert all(a >= b for a, b in itertools.pairwise(rates[20:]))


def test_the_anchor_rises_over_its_share_of_the_epochs():
    table = [0.4 * share for share in anchor_shares(Recipe(epochs=10, anchor_warmup=0.5), steps_per_epoch=2)]
    assert table[:10] == pytest.approx([0.04 * step for step in range(10)])
    assert table[10:] == pytest.approx([0.4] * 10)
    assert anchor_shares(Recipe(epochs=2), steps_per_epoch=2) == [1.0] * 4


def test_an_average_forgets_its_start_however_short_the_run():
    recipe = Recipe(epochs=80, ema=0.999)
    left = math.prod(1 - share for share in average_shares(recipe, steps_per_epoch=1))
    assert left < 1e-6  # 0.92 with a constant decay
    assert average_shares(recipe.replace(epochs=20000), 1)[-1] == pytest.approx(1e-3)
