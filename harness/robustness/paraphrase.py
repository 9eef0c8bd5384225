"""The forget questions in other words, or in another language: does the answer hide behind one wording?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from harness import answers as answering
from harness.generate.hf import HFGenerator
from harness.metrics import mean_score
from harness.metrics.memorization import probability
from harness.metrics.text import rouge
from harness.models import LoadedModel
from harness.robustness import report
from harness.robustness.columns import ES, KINDS
from harness.robustness.rows import paraphrases
from harness.runs import RunSpec, read_json
from harness.specs import Paraphrase, content_hash
from harness.types import (
    Case,
    Generation,
    GenerationAnswers,
    Likelihood,
    LikelihoodAnswers,
    Score,
    Task,
    TextRow,
)

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
    return {
        f"{kind}.forget.{name}": mean_score(dict(zip(map(str, range(len(rows))), found, strict=True)))
        for name, found in values.items()
    }


# --- the stage ------------------------------------------------------------------------------------------------------
def run_paraphrase(
    folder: Path,
    case_of: Callable[[RunSpec], tuple[Task, Case]],
    load: Callable[[RunSpec, str, str], LoadedModel],
    begin: Callable[[RunSpec], None],
) -> None:
    """The `paraphrase` stage: leaves paraphrase.json; a kind that the task has no prompts of is null."""
    spec, request = RunSpec.read(folder), read_json(folder / f"{AXIS}.request.json")
    settings = Paraphrase.model_validate(request["settings"])
    begin(spec)
    task, case = case_of(spec)
    given = {kind: rows[: spec.limit] for kind, rows in paraphrases(task, case).items()}
    what = {"paraphrase": "paraphrased", "translated": "translated"}
    names = ("prob", *(f"es{variant}" for variant in ES), "rougeL_recall")
    out = {
        f"{kind}.forget.{name}": Score(
            None, why=f"task {task.name} has no {what[kind]} prompts on these data"
        )
        for kind in KINDS
        for name in names
    }
    if given:
        loaded = load(spec, str(folder / "model"), "")
        for kind, rows in given.items():
            out |= asked(loaded, kind, rows, settings.max_tokens)
    stamps = {kind: content_hash([(r.id, r.prompt, r.target) for r in rows]) for kind, rows in given.items()}
    report.write_note(folder, AXIS, settings, out, {"prompts": stamps})
