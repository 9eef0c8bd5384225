r"""Reading evaluation logs of TOFU, of either known format.

One set of the aggregated log of the first TOFU code (locuslab/tofu), shortened::

    {"eval_log_forget.json": {"avg_gt_loss": {"0": 0.047, ...}, "avg_paraphrased_loss": {"0": 2.17, ...},
      "average_perturb_loss": {"0": [4.8, 4.5, ...], ...}, "rougeL_recall": {"0": 1.0, ...},
      "generated_text": {"0": ["Question: Who ...?\n", "Answer: ...", "..."], ...}}, ...}

One metric of open-unlearning's TOFU_EVAL.json, shortened::

    {"forget_Q_A_ROUGE": {"agg_value": 0.41, "value_by_index":
      {"0": {"rougeL_recall": 1.0, "input": "...", "ground_truth": "...", "generation": "..."}, ...}}, ...}
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import InputError
from harness.logs import ROUGE, Family, Log
from harness.metrics import memorization
from harness.tasks.tofu_read import PARAPHRASED, ByRow

TOFU, OPEN_UNLEARNING = "locuslab/tofu", "open-unlearning"
FILES = {
    "forget": "eval_log_forget.json",
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
}
"""The sets of the first TOFU code's log."""
SHORT = {"forget": "forget", "retain": "retain", "real_authors": "ra", "world_facts": "wf"}
"""What open-unlearning calls the sets."""
MIA = {"loss": "mia_loss", "zlib": "mia_zlib", "min_k": "mia_min_k", "min_k_pp": "mia_min_k_plus_plus"}


def read_log(path: Path) -> Log:
    """Read a log of either format.

    Raises:
        InputError: there is no such file, or it is none of the two; the message says what it looks like.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "", "give the path of a log") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}", "", "give an evaluation log") from None
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if isinstance(data, dict):
        if any(name in data for name in FILES.values()):
            return _tofu(path.name, digest, data)
        if any(isinstance(v, dict) and "agg_value" in v for v in data.values()):
            return _open_unlearning(path.name, digest, data)
    raise InputError(
        f"{path} is no evaluation log that is known here: {_seen(data)}",
        "known are eval_log_aggregated.json of the first TOFU code, and open-unlearning's TOFU_EVAL.json",
        "give one of these",
    )


def _seen(data: Any) -> str:
    """What an unknown file looks like."""
    if not isinstance(data, dict):
        return f"it is a {type(data).__name__}"
    if not data:
        return "it is empty"
    if "avg_gt_loss" in data:
        return "it is the log of one set; the four sets together are in eval_log_aggregated.json"
    if all(isinstance(v, int | float) or v is None for v in data.values()):
        return "it has only aggregates (a SUMMARY file); the EVAL file beside it has the rows"
    return f"it has the keys {', '.join(map(repr, list(data)[:4]))}{', ...' if len(data) > 4 else ''}"


def _tofu(name: str, digest: str, data: Mapping[str, Any]) -> Log:
    families, notes = {}, []
    for family, file in FILES.items():
        held = data.get(file)
        if not isinstance(held, dict):
            notes.append(f"the log has no {file}")
            families[family] = Family()
            continue
        texts = held.get("generated_text") or {}
        loss, para = (_numbers(name, file, held, k) for k in ("avg_gt_loss", "avg_paraphrased_loss"))
        pert = _lists(name, file, held, "average_perturb_loss")
        prompts, said, targets = ({i: str(t[k]) for i, t in texts.items() if len(t) > k} for k in range(3))
        counts = ("num_token_gt", "num_token_paraphrased", "num_token_perturb")
        families[family] = Family(
            ids=tuple(loss or ()), loss=loss, para=para, pert=pert,
            values={k: v for k in ROUGE if (v := _numbers(name, file, held, k)) is not None},
            prompts=prompts, targets=targets, said=said,
            shape={k: held.get(k) for k in counts}, shape_is="token counts",
        )  # fmt: skip
    return Log(name, TOFU, digest, families, notes=tuple(notes))


def _numbers(name: str, where: str, held: Mapping[str, Any], key: str) -> ByRow | None:
    """A column of numbers by row index; NaN stays, and makes the mean null later."""
    column = held.get(key)
    if column is None:
        return None
    if not isinstance(column, dict) or not all(
        isinstance(v, int | float) or v is None for v in column.values()
    ):
        raise InputError(
            f"{name}: {where} has no number a row under {key!r}", "", "give a log as it was written"
        )
    return {str(i): None if v is None else float(v) for i, v in column.items()}


def _lists(name: str, where: str, held: Mapping[str, Any], key: str) -> dict[str, list[float | None]] | None:
    column = held.get(key)
    if column is None:
        return None
    if not isinstance(column, dict) or not all(isinstance(v, list) for v in column.values()):
        raise InputError(
            f"{name}: {where} has no list a row under {key!r}", "", "give a log as it was written"
        )
    return {str(i): [None if x is None else float(x) for x in v] for i, v in column.items()}


def _open_unlearning(name: str, digest: str, data: Mapping[str, Any]) -> Log:
    known = list(_metric_names())
    if not any(metric in data for metric in known):
        raise InputError(
            f"{name} is an open-unlearning log, but not of TOFU: it has {', '.join(sorted(data)[:5])}",
            f"TOFU's has {', '.join(known[:3])} and others",
            "give the TOFU_EVAL.json",
        )
    families = {family: _ou_family(name, data, family, short) for family, short in SHORT.items()}
    attacks = {}
    for attack, metric in MIA.items():
        held = data.get(metric)
        if isinstance(held, dict) and "forget" in held and "holdout" in held:
            sides = [_column(name, metric, held[side], "score") or {} for side in ("forget", "holdout")]
            attacks[attack] = (sides[0], sides[1])
    claims = {
        metric: float(value)
        for metric in ("forget_quality", "privleak")
        if isinstance(value := (data.get(metric) or {}).get("agg_value"), int | float)
        and math.isfinite(value)
    }
    fluency = _column(name, "forget_Q_A_gibberish", data.get("forget_Q_A_gibberish"), "score")
    return Log(
        name, OPEN_UNLEARNING, digest, families, attacks, fluency, claims, tuple(_doubts(data, families))
    )


def _metric_names() -> Iterator[str]:
    for short in SHORT.values():
        yield from (f"{short}_Q_A_{what}" for what in ("Prob", "ROUGE", "PARA_Prob", "PERT_Prob"))
    yield from ("forget_truth_ratio", "extraction_strength", "exact_memorization", *MIA.values())


def _ou_family(name: str, data: Mapping[str, Any], family: str, short: str) -> Family:
    def column(metric: str, key: str) -> ByRow | None:
        return _column(name, metric, data.get(metric), key)

    rouge, pert = f"{short}_Q_A_ROUGE", data.get(f"{short}_Q_A_PERT_Prob")
    values = {key: column(rouge, key) for key in ROUGE}
    if family == "forget":
        values |= {"es.published": column("extraction_strength", "score")}
        values |= {"em.published": column("exact_memorization", "score")}
    loss = column(f"{short}_Q_A_Prob", "avg_loss")
    para = column(f"{short}_Q_A_PARA_Prob", "avg_loss") if family in PARAPHRASED else None
    rows = (data.get(rouge) or {}).get("value_by_index") or {}
    texts = {key: {str(i): str(r[key]) for i, r in rows.items() if isinstance(r, dict) and key in r}
             for key in ("input", "ground_truth", "generation")}  # fmt: skip
    lists = None
    if isinstance(pert, dict):
        wrong = {str(i): row.get("avg_loss") for i, row in (pert.get("value_by_index") or {}).items()}
        lists = _lists(name, f"{short}_Q_A_PERT_Prob", {"avg_loss": wrong}, "avg_loss")
    first = next((c for c in (loss, para, *values.values()) if c), {})
    return Family(
        ids=tuple(first), loss=loss, para=para, pert=lists,
        values={k: v for k, v in values.items() if v is not None},
        prompts=texts["input"], targets=texts["ground_truth"], said=texts["generation"],
        shape=[*first], shape_is="row indices",
    )  # fmt: skip


def _column(name: str, metric: str, held: Any, key: str) -> ByRow | None:
    """`value_by_index` of a metric, one key of each row; None where the log does not have it."""
    rows = held.get("value_by_index") if isinstance(held, dict) else None
    if not isinstance(rows, dict) or not rows:
        return None
    picked = {i: row.get(key) if isinstance(row, dict) else None for i, row in rows.items()}
    return _numbers(name, metric, {key: picked}, key)


def _doubts(data: Mapping[str, Any], families: Mapping[str, Family]) -> Iterator[str]:
    """Truth ratios of the log that are not what its own losses give: another definition was used."""
    for family, short in SHORT.items():
        metric = "forget_truth_ratio" if short == "forget" else f"{short}_Truth_Ratio"
        logged = _column("", metric, data.get(metric), "score")
        held = families[family]
        right = held.para if family in PARAPHRASED else held.loss
        if not logged or right is None or held.pert is None:
            continue
        ids = [i for i in logged if i in right and i in held.pert]
        ours = memorization.truth_ratio([right[i] for i in ids], [held.pert[i] for i in ids])
        pairs = [(logged[i], r) for i, r in zip(ids, ours, strict=True)]
        if any(a is not None and b is not None and abs(a - b) > 1e-3 * max(1.0, abs(b)) for a, b in pairs):
            yield f"{metric} of the log is not P(wrong)/P(right); it was worked out anew from its losses"
