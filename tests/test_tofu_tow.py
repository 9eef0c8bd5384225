"""Tug of war on language boards: which answers match, and the product of three gaps."""

from __future__ import annotations

import pytest

from harness.metrics.text import match
from harness.tasks import tofu_scores
from harness.tasks.tofu_columns import METRICS

FAMILIES = ("forget", "retain", "real_authors", "world_facts")


class Said:
    """Shares of matching answers by family, as `Read` gives them: `n` rows each."""

    no_reference = "no retrained model"
    families = FAMILIES

    def __init__(self, n: int = 20, **shares: float) -> None:
        self.shares, self.n = shares, n

    def written(self, family: str, name: str) -> dict[str, float] | None:
        assert name == "match"
        if family not in self.shares:
            return None
        return {f"{family}-{i}": float(i < round(self.shares[family] * self.n)) for i in range(self.n)}

    def lacks(self, *probes: str) -> str:
        return f"probe {' or '.join(probes)} was not asked"


def test_tow_is_that_of_the_shares_of_matching_answers():
    aim = Said(forget=0.1, retain=0.9, real_authors=0.8, world_facts=0.6)
    own = Said(forget=0.15, retain=0.85, real_authors=0.7, world_facts=0.5)
    found = tofu_scores._tow(own, aim)  # type: ignore[arg-type]
    assert found.value == pytest.approx(0.95 * 0.95 * 0.9)
    assert found.n == 80
    assert tofu_scores._tow(aim, aim).value == 1.0  # type: ignore[arg-type]


def test_tow_without_what_it_needs_is_null_with_its_reason():
    aim = Said(forget=0.1, retain=0.9, real_authors=0.8, world_facts=0.6)
    assert tofu_scores._tow(aim, None).why == "no retrained model"  # type: ignore[arg-type]
    half = Said(forget=0.1, retain=0.9, real_authors=0.8)
    found = tofu_scores._tow(half, aim)  # type: ignore[arg-type]
    assert found.value is None and "world_facts_text" in found.why


def test_an_answer_matches_when_the_right_one_stands_in_it_word_by_word():
    said = ["He plays the Lute.", "He plays the flute", "lute", "the lute, and the harp", "", "..."]
    assert match(said, ["the lute"] * 6) == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert match(["anything"], ["!?"]) == [None]
    assert match(["x 3 y"], ["3"]) == [1.0]


def test_the_columns_are_there():
    ids = {info.id: info for info in METRICS}
    assert ids["tow"].roles == ("retain",) and ids["tow"].direction == "higher"
    assert [ids[f"{family}.match"].direction for family in FAMILIES] == [
        "lower",
        "higher",
        "higher",
        "higher",
    ]
