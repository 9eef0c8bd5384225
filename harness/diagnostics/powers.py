"""The spectral power sweep, read from records (Spectral Unlearning, App. E.7, Fig. 14)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from harness.errors import InputError, near
from harness.specs import RunRecord
from harness.types import MetricInfo

OPTIMIZER, POWER = "spectral_power", "optimizer.power"
RECIPE = (
    "run `uharness sweep npo retain_finetune --board BOARD --set optimizer.name=spectral_power "
    "--grid optimizer.power=0,0.25,0.5,0.75,1` first"
)


def power_lines(records: Sequence[RunRecord], metric: MetricInfo) -> list[dict[str, Any]]:
    """One line a submission and exponent: mean and standard deviation of the metric over cases and seeds.

    Where several learning rates (or other settings) were run at one exponent, the entry with the best mean counts;
    `entries` says among how many. Raises `InputError` when no record has the optimizer and the metric, or when the
    metric has no best value to choose by.
    """
    used = [r for r in records if r.optimizer == OPTIMIZER and r.ranked]
    if not used:
        raise InputError(
            f"no ranked run with the optimizer {OPTIMIZER}", f"{len(records)} runs were looked at", RECIPE
        )
    groups: dict[tuple[str, float], dict[str, list[float]]] = {}
    for r in used:
        score = r.scores.get(metric.id)
        if score is not None and score.value is not None:
            entries = groups.setdefault((r.submission, float(r.config[POWER])), {})
            entries.setdefault(r.entry, []).append(score.value)
    if not groups:
        known = {name for r in used for name, s in r.scores.items() if s.value is not None}
        raise InputError(
            f"no run has a value of {metric.id}", near(metric.id, known), "choose another --metric"
        )
    out = []
    for (submission, power), entries in sorted(groups.items()):
        entry = _best(entries, metric)
        values = entries[entry]
        out.append({
            "submission": submission, "power": power, "value": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else None, "runs": len(values), "entry": entry,
            "entries": len(entries),
        })  # fmt: skip
    return out


def _best(entries: dict[str, list[float]], metric: MetricInfo) -> str:
    means = {name: statistics.fmean(values) for name, values in sorted(entries.items())}
    if metric.direction == "none" and len(means) > 1:
        raise InputError(
            f"{metric.id} has no direction, so the best of {len(means)} entries at one exponent is not defined",
            ", ".join(means), "choose a metric that is ranked",
        )  # fmt: skip
    if metric.direction == "lower":
        return min(means, key=means.__getitem__)
    if metric.direction == "target":
        return min(means, key=lambda name: abs(means[name] - (metric.target or 0.0)))
    return max(means, key=means.__getitem__)
