"""The forget questions in other words, or in another language: does the answer hide behind one wording?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness import answers as answering
from harness.generate.hf import HFGenerator
from harness.metrics import mean_score
from harness.metrics.memorization import probability
from harness.metrics.text import rouge
from harness.models import LoadedModel
from harness.robustness.columns import ES, ids
from harness.robustness.finished import Finished
from harness.robustness.rows import numbered, paraphrases
from harness.specs import Paraphrase, content_hash
from harness.types import Generation, GenerationAnswers, Likelihood, LikelihoodAnswers, Score, TextRow

AXIS = "paraphrase"


def asked(loaded: LoadedModel, kind: str, rows: Sequence[TextRow], max_tokens: int) -> dict[str, Score]:
    """Scores of the answers to one kind of prompts; at least one row."""
    if loaded.encoder is None:
        raise ValueError("the axes are for text models")
    probes = [Likelihood("rows", rows), Generation("rows_text", rows, max_tokens)]
    found = answering.answer(loaded, probes, HFGenerator(loaded.model, loaded.encoder))
    likelihoods, said = found["rows"], found["rows_text"]
    assert isinstance(likelihoods, LikelihoodAnswers) and isinstance(said, GenerationAnswers)
    values = {"prob": probability(likelihoods.scores)}
    values |= {f"es{variant}": metric(likelihoods.scores) for variant, metric in ES.items()}
    values |= {"rougeL_recall": rouge(said.texts, [row.target for row in rows])}
    return {f"{kind}.forget.{name}": mean_score(numbered(found)) for name, found in values.items()}


def measured(run: Finished, settings: Paraphrase) -> tuple[dict[str, Score], dict[str, Any]]:
    """The axis's scores, null for a kind that the task has no prompts of; and hashes of the prompts by kind."""
    given = {kind: rows[: run.spec.limit] for kind, rows in paraphrases(run.task, run.case).items()}
    out = {}
    for name in ids(AXIS, settings):
        kind = {"paraphrase": "paraphrased", "translated": "translated"}[name.partition(".")[0]]
        out[name] = Score(None, why=f"task {run.task.name} has no {kind} prompts on these data")
    if given:
        loaded = run.model()
        for kind, rows in given.items():
            out |= asked(loaded, kind, rows, settings.max_tokens)
    stamps = {kind: content_hash([(r.id, r.prompt, r.target) for r in rows]) for kind, rows in given.items()}
    return out, {"prompts": stamps}
