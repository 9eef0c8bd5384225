"""Relearning: fine-tune an unlearned model on a few forget rows, and see how much of the others comes back.

After Spectral Unlearning, Fig. 6: a random tenth of the forget rows, extraction strength along the steps, beside the
retain model that learns the same rows. The optimizer is AdamW with a fresh state, a constant rate and no weight decay,
the same for every run of a board; the loss is the mean over the answer tokens of an update's rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness import scoring
from harness.answers import code_version
from harness.batches import deal
from harness.metrics import mean_score
from harness.models import LoadedModel
from harness.robustness import report
from harness.robustness.columns import ES
from harness.robustness.finished import Finished
from harness.robustness.rows import numbered, own_questions, relearnt, texts
from harness.runs import read_json, write_json
from harness.specs import Relearn, content_hash
from harness.types import Score, TextRow

AXIS = "relearn"
_STREAM = 2
"""Of `deal`; 0 and 1 are a job's forget and retain rows."""
_SEEN = "every forget row was relearnt: lower share in [robustness.relearn]"
_NO_QUESTIONS = "the task names no questions beside the forget rows"
MEASURES = (
    "forget.es",
    "forget.es.published",
    "forget.es.unseen",
    "forget.es.unseen.published",
    "questions.es",
)
MOST_QUESTIONS = 64


@dataclass(frozen=True)
class Curve:
    """Looks at the weights along relearning: `steps` ascending from 0, and for each a score by measure."""

    steps: tuple[int, ...]
    looks: tuple[Mapping[str, Score], ...]

    def values(self, measure: str) -> list[float | None]:
        """One measure along the steps."""
        return [look[measure].value for look in self.looks]


def relearn(
    loaded: LoadedModel,
    rows: Sequence[TextRow],
    seen: Sequence[int],
    settings: Relearn,
    questions: Sequence[TextRow] = (),
    *,
    seed: int = 0,
    dtype: str = "float32",
    micro: int | None = None,
) -> Curve:
    """Train `loaded.model` in place on `rows[i] for i in seen`, looking at all rows along the way.

    Args:
        loaded: a text model.
        rows: all forget rows.
        seen: numbers of those that are relearnt; at least one.
        settings: steps, rate, batch, how often to look.
        questions: looked at too, never learnt.
        seed: of the order of the rows.
        dtype: of the passes, where the weights have a higher one.
        micro: rows that go through the model at once; all of an update's without.
    """
    model = loaded.model
    model.eval()  # no dropout: zero steps, or another machine, change nothing by chance
    count = min(settings.batch, len(seen))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)

    def look() -> dict[str, Score]:
        with _precision(model, dtype):
            return looked(loaded, rows, seen, questions)

    steps, looks = [0], [look()]
    for step in range(settings.steps):
        index = [seen[i] for i in deal(seed, _STREAM, len(seen), step * count, count)]
        optimizer.zero_grad()
        parts = [index[at : at + (micro or count)] for at in range(0, count, micro or count)]
        inputs = [_collate(loaded, [rows[i] for i in part]) for part in parts]
        tokens = max(1, sum(int(one.mask.sum()) for one in inputs))
        for one in inputs:
            with _precision(model, dtype):
                loss = -scoring.token_logp(scoring.forward(model, one)).sum() / tokens
            loss.backward()
        optimizer.step()
        if (step + 1) % settings.every == 0 or step + 1 == settings.steps:
            steps.append(step + 1)
            looks.append(look())
    return Curve(tuple(steps), tuple(looks))


def _collate(loaded: LoadedModel, rows: Sequence[TextRow]) -> scoring.Inputs:
    return scoring.collate(rows, loaded.encoder, device=str(next(loaded.model.parameters()).device))


def _precision(model: torch.nn.Module, dtype: str) -> contextlib.AbstractContextManager[Any]:
    first = next(model.parameters())
    wanted = getattr(torch, dtype)
    return contextlib.nullcontext() if first.dtype == wanted else torch.autocast(first.device.type, wanted)


def looked(
    loaded: LoadedModel, rows: Sequence[TextRow], seen: Sequence[int], questions: Sequence[TextRow]
) -> dict[str, Score]:
    """Extraction strength by measure: on all rows, on those not in `seen`, on the answers to the questions."""
    scores = scoring.score(loaded.model, rows, loaded.encoder)
    left = set(range(len(rows))) - set(seen)
    out = {}
    for variant, metric in ES.items():
        values = metric(scores)
        out[f"forget.es{variant}"] = mean_score(numbered(values))
        others = numbered([values[i] for i in sorted(left)])
        out[f"forget.es.unseen{variant}"] = mean_score(others or None, _SEEN)
    asked = numbered(ES[""](scoring.score(loaded.model, questions, loaded.encoder)))
    return out | {"questions.es": mean_score(asked or None, _NO_QUESTIONS)}


def area(steps: Sequence[int], values: Sequence[float | None]) -> float | None:
    """Mean height of a curve by trapezoids; its only value where there is one step; None where a value is missing.

    >>> area([0, 1, 3], [0.0, 1.0, 1.0])
    0.8333333333333334
    """
    known = [v for v in values if v is not None]
    if len(known) < len(values) or not known:
        return None
    if len(steps) == 1:
        return known[0]
    parts = zip(steps, steps[1:], known, known[1:], strict=False)
    return sum((b - a) * (x + y) / 2 for a, b, x, y in parts) / (steps[-1] - steps[0])


REFERENCE = {
    "relearn.reference.es": "forget.es",
    "relearn.reference.es.unseen": "forget.es.unseen",
    "relearn.reference.questions.es": "questions.es",
}


def scores_of(own: Curve, other: Curve | None, why: str = "") -> dict[str, Score]:
    """The axis's scores from the run's curve and the retain model's; `why` there is none."""
    last = own.looks[-1]
    out = {f"relearn.{measure}": last[measure] for measure in MEASURES}
    for tag in ("", ".unseen"):
        measure = f"forget.es{tag}"
        value = area(own.steps, own.values(measure))
        reason = next((look[measure].why for look in own.looks if look[measure].value is None), "")
        out[f"relearn.auc{tag}"] = Score(value, last[measure].n, reason)
    for name, measure in REFERENCE.items():
        out[name] = Score(None, why=why) if other is None else other.looks[-1][measure]
    a, b = out["relearn.forget.es.unseen"], out["relearn.reference.es.unseen"]
    gap = None if a.value is None or b.value is None else a.value - b.value
    return out | {"relearn.excess": Score(gap, a.n, a.why or b.why)}


def lines_of(name: str, curve: Curve) -> list[dict[str, Any]]:
    """A curve as lines of the diagnostics table; `updates` are relearning's own."""
    return [
        {"name": name, "measure": m, "step": step, "updates": step, "value": look[m].value, "why": look[m].why}
        for step, look in zip(curve.steps, curve.looks, strict=True)
        for m in MEASURES
    ]  # fmt: skip


def measured(run: Finished, settings: Relearn) -> tuple[dict[str, Score], dict[str, Any]]:
    """The axis's scores, and which rows were relearnt; the curves are left among the run's diagnostics.

    The retain model's curve depends on no run but on its seed, and is kept for the next one.
    """
    spec, board = run.spec, run.spec.board
    rows, asked = texts(run.case.forget), own_questions(run.task, run.case, MOST_QUESTIONS)
    seen = relearnt(len(rows), settings.share, spec.seed, settings.seed)

    def learn(loaded: LoadedModel) -> Curve:
        how = {"seed": spec.seed, "dtype": board.dtype, "micro": board.batch.micro}
        return relearn(loaded, rows, seen, settings, asked, **how)

    own, other, why = learn(run.model("float32")), None, f"board {board.name} names no retain model"
    if "retain" in spec.models:
        key = content_hash([
            code_version(), report.code_hash(), settings.model_dump(mode="json"), spec.seed,
            spec.hashes.get("model.retain"), [(r.id, r.prompt, r.target) for r in (*rows, *asked)], board.dtype,
            board.max_length, board.template.model_dump(mode="json"),
        ])  # fmt: skip
        path = spec.models["retain"]
        other = _kept(run.cache / f"relearn-{key}.json", lambda: learn(run.weights(path, "float32")))
    lines = lines_of("run", own) + (lines_of("retain", other) if other is not None else [])
    report.keep_lines(run.folder, AXIS, lines)
    return scores_of(own, other, why), {"rows": len(rows), "relearnt": [rows[i].id for i in seen]}


def _kept(path: Path, make: Callable[[], Curve]) -> Curve:
    if not path.exists():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"steps": made.steps, "looks": [report.note_scores(look) for look in made.looks]})
    kept = read_json(path)
    looks = tuple({name: Score(**score) for name, score in look.items()} for look in kept["looks"])
    return Curve(tuple(kept["steps"]), looks)
