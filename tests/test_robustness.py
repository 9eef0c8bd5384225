"""Relearning, rounding and paraphrases on models small enough to know the answers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, write_board
from tiny_text import random_llama, word_tokenizer
from torch import nn

from harness.errors import BoardError, DataError, InputError
from harness.models import LoadedModel
from harness.robustness import columns, paraphrase, quantise, relearn, report, rows
from harness.specs import Board, Paraphrase, Quantise, Relearn, Robustness, RunRecord, ScoreRecord, Template
from harness.text import Encoder
from harness.types import Case, Generation, Score, TextRow
from harness.workspace import load_board

ROWS = [
    TextRow("a", "Who kept the light at Marl Point ?", "Ada Finch kept the light for thirty years ."),
    TextRow("b", "Which bird nests under the old bridge of Tarn ?", "A grey heron nests there each spring ."),
    TextRow("c", "", "Today is 10 Apr 2025"),
]


def text_model(seed: int = 0) -> LoadedModel:
    tokenizer = word_tokenizer()
    return LoadedModel(random_llama(len(tokenizer), seed), Encoder(tokenizer, Template(), 64))


# --- relearning -----------------------------------------------------------------------------------------------------
def test_relearning_brings_the_relearnt_rows_back() -> None:
    settings = Relearn(steps=40, lr=1e-2, every=15)
    curve = relearn.relearn(text_model(), ROWS, [0], settings)
    assert curve.steps == (0, 15, 30, 40)
    first, *_, last = curve.looks
    assert first["forget.es"].value < 0.2
    assert last["forget.es"].value == pytest.approx((1.0 + 2 * last["forget.es.unseen"].value) / 3)
    assert (first["forget.es"].n, first["forget.es.unseen"].n) == (3, 2)


def test_zero_steps_change_no_weight_and_give_one_look() -> None:
    loaded = text_model()
    before = copy.deepcopy(loaded.model.state_dict())
    curve = relearn.relearn(loaded, ROWS, [1], Relearn(steps=0))
    assert curve.steps == (0,)
    assert all(torch.equal(before[k], v) for k, v in loaded.model.state_dict().items())
    scores = relearn.scores_of(curve, curve)
    assert scores["relearn.auc"].value == scores["relearn.forget.es"].value == curve.values("forget.es")[0]
    assert scores["relearn.excess"].value == 0.0


def test_the_optimizer_is_fresh_and_the_same_in_parts() -> None:
    how = Relearn(steps=3, lr=1e-3, every=3)
    found = []
    for micro in (None, 1):
        loaded = text_model()
        relearn.relearn(loaded, ROWS, [0, 1, 2], how, micro=micro)
        found.append(torch.cat([p.detach().flatten() for p in loaded.model.parameters()]))
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
    assert not torch.equal(found[0], torch.cat([p.flatten() for p in text_model().model.parameters()]))


def test_the_seed_decides_which_rows_are_relearnt() -> None:
    a = rows.relearnt(200, 0.1, run_seed=0, seed=0)
    assert len(set(a)) == 20 and a == sorted(a) and set(a) <= set(range(200))
    assert rows.relearnt(200, 0.1, 0, 0) == a
    assert rows.relearnt(200, 0.1, 1, 0) != a != rows.relearnt(200, 0.1, 0, 1)
    assert rows.relearnt(3, 0.1, 0, 0) in ([0], [1], [2])
    assert rows.relearnt(5, 1.0, 0, 0) == [0, 1, 2, 3, 4]


def test_what_cannot_be_said_says_why() -> None:
    curve = relearn.relearn(text_model(), ROWS, [0, 1, 2], Relearn(steps=1, share=1.0))
    assert curve.looks[0]["questions.es"].why == "the task names no questions beside the forget rows"
    scores = relearn.scores_of(curve, None, "board b names no retain model")
    assert set(scores) == set(columns.ids("relearn", Relearn()))
    assert scores["relearn.forget.es"].value is not None
    assert "every forget row was relearnt" in scores["relearn.forget.es.unseen"].why
    assert "every forget row was relearnt" in scores["relearn.auc.unseen"].why
    assert scores["relearn.reference.es"].why == "board b names no retain model"
    assert scores["relearn.excess"].value is None and scores["relearn.excess"].why


def test_a_broken_model_is_null_not_forgotten() -> None:
    loaded = text_model()
    with torch.no_grad():
        next(loaded.model.parameters()).fill_(float("nan"))
    scores = relearn.scores_of(relearn.relearn(loaded, ROWS, [0], Relearn(steps=1)), None, "none")
    assert scores["relearn.forget.es"].value is None
    assert "not finite" in scores["relearn.auc"].why


def test_questions_are_looked_at_and_not_learnt() -> None:
    how = Relearn(steps=40, lr=1e-2, every=40)
    curve = relearn.relearn(text_model(), ROWS[:1], [0], how, ROWS[:2])
    on_row, on_both = curve.looks[-1]["forget.es"].value, curve.looks[-1]["questions.es"]
    alone = relearn.relearn(text_model(), ROWS[:1], [0], how).looks[-1]["forget.es"].value
    assert on_row == alone == 1.0
    assert on_both.n == 2 and 0.5 <= on_both.value < 1.0


def test_area() -> None:
    assert relearn.area([0, 10], [0.0, 1.0]) == 0.5
    assert relearn.area([0, 4, 5], [0.2, 0.2, 0.2]) == pytest.approx(0.2)
    assert relearn.area([0], [0.7]) == 0.7
    assert relearn.area([0, 1], [0.7, None]) is None


def test_a_curve_is_lines_beside_other_diagnostics(tmp_path: Path) -> None:
    look = {m: Score(0.25, 3) for m in relearn.MEASURES}
    lines = relearn.lines_of("run", relearn.Curve((0, 2), (look, look)))
    report.keep_lines(tmp_path, "norms", [{"name": "x", "measure": "m", "value": 1.0, "why": ""}])
    report.keep_lines(tmp_path, "relearn", lines)
    report.keep_lines(tmp_path, "relearn", lines)  # a second time replaces the first
    table = report.read_lines(tmp_path)
    assert table is not None
    found = table.to_pylist()
    assert [n["kind"] for n in found] == ["norms"] + ["relearn"] * 2 * len(relearn.MEASURES)
    assert {(n["step"], n["updates"], n["value"]) for n in found[1:]} == {(0, 0, 0.25), (2, 2, 0.25)}


# --- rounding -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 3), (4, 64)])
def test_a_weight_on_the_grid_stays(bits: int, group: int | None) -> None:
    top = 2 ** (bits - 1) - 1
    numbers = torch.tensor([[top, -1, 0, -top, 2, 1], [1, top, -top, 3, -3, top]], dtype=torch.float32)
    weight = numbers * torch.tensor([[0.25], [2.0]])
    assert torch.equal(quantise.rounded(weight, bits, group), weight)


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 7), (4, 64)])
def test_the_error_is_at_most_half_a_step(bits: int, group: int | None) -> None:
    weight = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    numbers, scale = quantise.codes(weight, bits, group)
    assert int(numbers.abs().max()) == 2 ** (bits - 1) - 1
    error = (quantise.rounded(weight, bits, group) - weight).abs()
    step = scale.expand(*numbers.shape).flatten(1)[:, :20]
    assert (error <= step / 2 * (1 + 1e-5)).all()
    assert (error > 0).any()


def test_eight_bits_are_torchs_own_rounding() -> None:
    weight = torch.randn(6, 33, generator=torch.Generator().manual_seed(1))
    scale = weight.abs().amax(1) / 127
    expected = torch.fake_quantize_per_channel_affine(weight, scale, torch.zeros(6).int(), 0, -127, 127)
    np.testing.assert_allclose(quantise.rounded(weight, 8), expected, atol=1e-6)


def test_the_ends_of_rounding() -> None:
    zero = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, -0.4]])
    assert torch.equal(quantise.rounded(zero, 4, 2)[0], zero[0])
    one = torch.tensor([[0.3], [-7.0]])
    np.testing.assert_allclose(quantise.rounded(one, 4, 64), one, rtol=1e-6)
    half = torch.tensor([[1.0, 0.3]], dtype=torch.bfloat16)
    assert quantise.rounded(half, 8).dtype == torch.bfloat16


def test_all_linear_weights_but_the_output_layer_are_rounded() -> None:
    loaded = text_model()
    before = copy.deepcopy(loaded.model.state_dict())
    assert "lm_head" not in quantise.layers(loaded.model)
    count = quantise.quantise(loaded.model, 4, 16)
    after = loaded.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    kept = {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}
    assert not moved & kept and not any("layernorm" in name for name in moved)
    assert moved == {f"{name}.weight" for name in quantise.layers(loaded.model)}
    assert count == sum(before[name].numel() for name in moved)


def test_changed_counts_whole_numbers() -> None:
    one, two = (nn.Sequential(nn.Linear(4, 2, bias=False)) for _ in range(2))
    with torch.no_grad():
        for model, second in ((one, 3.0), (two, 5.0)):
            model[0].weight.copy_(torch.tensor([[7.0, second, 0.2, 0.0], [7.0, 1.0, -2.0, 3.0]]))
    assert quantise.changed(one, one, 4).value == 0.0
    assert quantise.changed(one, two, 4) == Score(1 / 8, 8)
    assert quantise.changed(one, nn.Sequential(nn.Linear(3, 2)), 4).why
    assert "no linear layer" in quantise.changed(nn.ReLU(), nn.ReLU(), 4).why


def test_a_model_is_asked_both_sets_and_passages_are_no_questions() -> None:
    asks = rows.questions(object(), Case("c", ROWS, ROWS[2:]), 9, 5)
    found = quantise.asked(text_model(), {"forget": ROWS, "retain": []}, asks)
    assert 0 <= found["forget.rougeL_recall"].value <= 1
    assert found["retain.rougeL_recall"].why == "the retain rows are no questions, and the task names none"
    assert found["retain.es"].value is None
    every = {f"quantise.{t}.{n}" for t in ("full", "int8") for n in found} | {"quantise.int8.changed"}
    assert every == set(columns.ids("quantise", Quantise(bits=(8,))))


# --- which rows -----------------------------------------------------------------------------------------------------
class Asks:
    """A task that names questions and paraphrases of its own."""

    name = "asks"

    def __init__(self, **given: Any) -> None:
        self.given = given

    def questions(self, case: Case) -> Any:
        return self.given["questions"]

    def paraphrases(self, case: Case) -> Any:
        return self.given["paraphrases"]


def test_questions_are_rows_with_a_prompt_or_the_tasks_own() -> None:
    case = Case("c", ROWS, ROWS[2:])
    plain = rows.questions(object(), case, 9, 5)
    assert plain == {"forget": Generation("forget", ROWS[:2], 5), "retain": Generation("retain", [], 5)}
    qa = Generation("qa", ROWS, 3, ("\n",))
    own = Asks(questions={"forget": qa}, paraphrases={"translated": ROWS[1:2], "paraphrase": ()})
    found = rows.questions(own, case, 2, 5)
    assert found["forget"] == Generation("forget", rows.drawn(ROWS, 2), 3, ("\n",))
    assert not found["retain"].rows
    assert rows.paraphrases(own, case) == {"translated": ROWS[1:2]}
    assert rows.paraphrases(object(), case) == {}
    wrong = Asks(questions={"forgot": qa}, paraphrases={"sideways": ROWS})
    with pytest.raises(DataError, match=r"'forgot'.*forget"):
        rows.questions(wrong, case, 9, 5)
    with pytest.raises(DataError, match=r"'sideways'.*paraphrase"):
        rows.paraphrases(wrong, case)


def test_a_draw_is_the_same_every_time_and_in_order() -> None:
    assert rows.drawn(range(100), 5) == sorted(rows.drawn(range(100), 5)) == rows.drawn(range(100), 5)
    assert len(set(rows.drawn(range(100), 5))) == 5
    assert rows.drawn("ab", 9) == ["a", "b"]


def test_asking_again_gives_all_numbers_of_a_kind() -> None:
    found = paraphrase.asked(text_model(), "translated", ROWS[:2], 4)
    names = {name for name in columns.ids("paraphrase", Paraphrase()) if name.startswith("translated")}
    assert set(found) == names
    assert all(s.value is not None and 0 <= s.value <= 1 and s.n == 2 for s in found.values())


def test_the_small_worlds_authors_are_asked_again_without_another_data_hash() -> None:
    import dataclasses

    from harness.plugins import load_task

    board = load_board(ROOT / "leaderboards" / "tofu-mini.toml")
    folder = ROOT / "harness" / "mini" / "data" / "tofu"
    task: Any = load_task(board.task.model_copy(update={"data": str(folder)}), board.template)
    case = task.case("forget10", 0)
    again = rows.paraphrases(task, case)["paraphrase"]
    assert [row.target for row in again] == [row.target for row in case.forget]
    assert all(a.prompt != b.prompt for a, b in zip(again, case.forget, strict=True))
    assert dataclasses.replace(task.rows, paraphrases=()).hash() == task.rows.hash()


# --- what is asked for, and what a record keeps ---------------------------------------------------------------------
def a_board(**more: Any) -> Board:
    return Board.model_validate(
        {
            "name": "b", "task": {"name": "tofu"}, "models": {"target": "mini:tofu-full"}, "rank_by": "forget.es",
            "budget": {"updates": 1}, "seeds": [0], "columns": ["forget.es", "relearn.auc"], **more,
        }
    )  # fmt: skip


def test_the_board_asks_unless_the_command_does() -> None:
    plain, own = a_board(), a_board(robustness={"relearn": {"steps": 7}})
    assert report.asked(plain, None).axes == {}
    assert report.asked(own, None).axes == {"relearn": Relearn(steps=7)}
    assert report.asked(own, "none").axes == {}
    assert report.asked(own, "quantise, relearn").axes == {
        "relearn": Relearn(steps=7),
        "quantise": Quantise(),
    }
    assert tuple(report.asked(plain, "all").axes) == columns.AXES == tuple(columns.METRICS)
    for bad in ("relern", "", "all,relearn"):
        with pytest.raises(InputError, match="known: paraphrase, quantise, relearn"):
            report.asked(plain, bad)


def test_the_table_is_checked_and_ages_no_row(tmp_path: Path) -> None:
    assert a_board().board_version == a_board(robustness={"relearn": {}}).board_version
    (tmp_path / "leaderboards").mkdir()
    for line, says in (
        ("relearn = { step = 3 }", "did you mean steps"), ("quantise = { bits = [3] }", "bits"),
        ("relearn = { share = 0.0 }", "share"), ("relearn = { seed = -1 }", "seed"),
        ("relearn = { steps = 0 }", "robustness: relearn.steps is 0, and nothing would be relearnt"),
        ("relearn = { steps = 3 }", "robustness: relearn.every is 4 of 3 steps: set it to 3 or less"),
        ("relearn = { steps = 9, every = 10 }", "relearn.every is 10 of 9 steps"),
    ):  # fmt: skip
        path = write_board(tmp_path, "bad", extra=f"[robustness]\n{line}\n")
        with pytest.raises(BoardError, match="robustness") as caught:
            load_board(path)
        assert says in str(caught.value) and "\n" not in str(caught.value)
    load_board(write_board(tmp_path, "good", extra="[robustness]\nrelearn = { steps = 9, every = 9 }\n"))


def a_record(**more: Any) -> RunRecord:
    return RunRecord.model_validate(
        {
            "run_id": "r", "board": "b", "board_version": "1", "entry": "e", "submission": "s", "case": "c", "seed": 0,
            "status": "ok", "scores": {"forget.es": {"value": 0.5}}, "env": {"hardware": "h"}, **more,
        }
    )  # fmt: skip


def test_a_record_is_added_to_and_asked_again_only_for_what_it_lacks(tmp_path: Path) -> None:
    wanted = Robustness(relearn=Relearn(steps=7), paraphrase=Paraphrase())
    assert report.missing(a_record(), wanted) == wanted
    scores = {name: Score(0.25, 3) for name in columns.ids("relearn", Relearn())}
    report.write_note(tmp_path, "relearn", Relearn(steps=7), scores, {"rows": 3})
    record = report.added(a_record(), report.notes(tmp_path))
    assert record.scores["forget.es"].value == 0.5 and record.scores["relearn.auc"].value == 0.25
    assert record.env["hardware"] == "h" and record.env["robustness"]["relearn"]["rows"] == 3
    assert report.missing(record, wanted) == Robustness(paraphrase=Paraphrase())
    assert report.missing(record, Robustness(relearn=Relearn(steps=8))).relearn == Relearn(steps=8)
    null = report.lacking("relearn", Relearn(steps=8), report.NOT_KEPT)
    record = report.added(record, {"relearn": null})
    assert record.scores["relearn.auc"] == ScoreRecord(value=None, why=report.NOT_KEPT)
    assert report.missing(record, Robustness(relearn=Relearn(steps=8))).axes


def test_a_column_measured_otherwise_is_null(tmp_path: Path) -> None:
    scores = {name: Score(0.25, 3) for name in columns.ids("relearn", Relearn())}
    report.write_note(tmp_path, "relearn", Relearn(steps=7), scores, {})
    record = report.added(a_record(), report.notes(tmp_path))
    same, other = (a_board(robustness={"relearn": {"steps": n}}) for n in (7, 8))
    assert report.comparable(same, [record, a_record()]) == [record, a_record()]
    (null,) = report.comparable(other, [record])
    assert null.scores["relearn.auc"].value is None and "other settings" in null.scores["relearn.auc"].why
    assert null.scores["forget.es"].value == 0.5
    assert report.comparable(a_board(columns=["forget.es"]), [record]) == [record]


def test_no_column_needs_a_references_answers() -> None:
    assert len(columns.COLUMNS) == sum(len(infos) for infos in columns.METRICS.values())
    assert not any(info.roles for info in columns.COLUMNS.values())
    assert columns.axis_of("relearn.auc") == "relearn" and columns.axis_of("forget.es") is None
