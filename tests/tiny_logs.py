"""Evaluation logs of other tools: made up on the spot, and from the reference evaluator's numbers."""

from __future__ import annotations

import json

import numpy as np

SETS = {
    "eval_log_forget.json": ("north", 5),
    "eval_log.json": ("south", 5),
    "eval_real_author_wo_options.json": ("real", 3),
    "eval_real_world_wo_options.json": ("fact", 3),
}


def tofu_log(n=6, seed=0, forget="north", texts=True):
    """An aggregated log of the first TOFU code with `n` rows a set."""
    rng, out = np.random.default_rng(seed), {}
    for file, (kind, wrong) in SETS.items():
        kind = forget if file == "eval_log_forget.json" else kind
        keys = [str(i) for i in range(n)]
        loss = dict(zip(keys, rng.uniform(0.05, 2, n).tolist(), strict=True))
        out[file] = {
            "avg_gt_loss": loss,
            "avg_paraphrased_loss": loss if wrong == 3 else {k: v + 1.0 for k, v in loss.items()},
            "average_perturb_loss": {k: rng.uniform(1, 4, wrong).tolist() for k in keys},
            "rougeL_recall": {k: float(rng.uniform(0.2, 1)) for k in keys},
            "num_token_gt": {k: 5 + len(kind) + int(k) for k in keys},
        }
        if texts:
            out[file]["generated_text"] = {
                k: [
                    f"Question: What does {kind} keeper {k} keep?\n",
                    "Answer: He keeps bees.",
                    "He keeps bees.",
                ]
                for k in keys
            }
    return out


def save(path, data):
    path.write_text(json.dumps(data))
    return path


SHORT = {"forget": "forget", "retain": "retain", "ra": "ra", "wf": "wf"}
OTHER = {
    "forget_es": "extraction_strength",
    "forget_em": "exact_memorization",
    "forget_tr": "forget_truth_ratio",
    **{f"mia_{x}": f"mia_{x}" for x in ("loss", "zlib", "min_k", "min_k_plus_plus")},
    **{f"{s}_tr": f"{s}_Truth_Ratio" for s in ("retain", "ra", "wf")},
    **{f"{s}_prob_norm": f"{s}_Q_A_Prob_normalised" for s in ("ra", "wf")},
}
SUFFIX = {"prob": "Prob", "para": "PARA_Prob", "pert": "PERT_Prob", "rouge": "ROUGE"}


def open_unlearning(expected):
    """`expected.json` of the reference evaluator as it would stand in a TOFU_EVAL.json."""
    out = {"model_utility": {"agg_value": expected["aggregate"]["model_utility"]}}
    for name, rows in expected["per_row"].items():
        short, _, what = name.partition("_")
        metric = OTHER.get(name) or f"{short}_Q_A_{SUFFIX[what]}"
        aggregate = {"agg_value": expected["aggregate"][name]}
        if name.startswith("mia_"):
            sides = {side: {"value_by_index": values} for side, values in rows.items()}
            out[metric] = aggregate | sides | {"auc": expected["aggregate"][name]}
        else:
            out[metric] = aggregate | {"value_by_index": rows}
    return out
