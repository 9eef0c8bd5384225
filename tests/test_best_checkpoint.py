from __future__ import annotations

import json

import pytest
from conftest import ROOT

from harness.entries import resolve
from harness.plugins import load_submission
from harness.select import moments_of


class Pool:
    """Candidates by their distances; what was put last is kept."""

    def __init__(self, values):
        self.values, self.put_in = values, None

    def __len__(self):
        return len(self.values)

    def judge(self, mix):
        return self.values[next(iter(mix))]

    def put(self, mix):
        self.put_in = mix


def selector(**settings):
    return resolve(load_submission("best_checkpoint", (ROOT / "submissions",)), {}, settings).method


@pytest.mark.parametrize(("values", "best"), [([3.0, 1.0, 2.0], 1), ([1.0, 1.0, 1.0], 2), ([5.0], 0)])
def test_the_best_is_kept_and_the_latest_of_equals(values, best):
    pool = Pool(values)
    selector().choose(pool)
    assert pool.put_in == {best: 1.0}


def test_moments_are_even_parts_without_the_end():
    assert moments_of(selector(checkpoints=4)) == (0.25, 0.5, 0.75)
    assert moments_of(selector(checkpoints=2)) == (0.5,)
    assert moments_of(object()) == ()
    assert [child.seed for child in selector().children(7)] == [7]
    with pytest.raises(Exception, match="at least 2"):
        selector(checkpoints=1)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["proxy", "full_metric"])
def test_moments_of_one_training_are_candidates(uharness, workspace, by):
    """Three updates, three checkpoints: one training, three evaluations, and nothing is left of the moments."""
    path = workspace / "leaderboards" / "tiny.toml"
    path.write_text(
        path.read_text()
        .replace('"retain.damage"', '"forget.p"')
        .replace('"forget.p", "forget.p"', '"forget.p"')
    )
    chosen = ("--set", "checkpoints=3", "--set", f"by={by}")
    assert uharness("submit", "best_checkpoint:random_label", "--board", "tiny", *chosen).code == 0
    (file,) = (workspace / "leaderboards/tiny/results").glob("*.json")
    record = json.loads(file.read_text())
    ledger = record["ledger"]
    counted = (3, 1) if by == "proxy" else (0, 3)
    assert (ledger["trainings"], ledger["proxy_evaluations"], ledger["full_evaluations"]) == (1, *counted)
    assert record["selection"]["kind"] == by and record["updates"] == 3
    run = workspace / "runs" / "tiny" / record["run_id"]
    tried = json.loads((run / "select.json").read_text())["tried"]
    assert [list(t["mix"]) for t in tried] == [["child 0"], ["child 1"], ["child 2"]]
    assert by == "proxy" or len({t["value"] for t in tried}) == 3
    assert not list(run.glob("children/*/points"))
