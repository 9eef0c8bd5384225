"""All numbers of the task `images` from answers: a pure function, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from harness.errors import DataError
from harness.metrics import circuits, distances, forgetting, mean_score, metric_info
from harness.metrics.distances import UNMERGE
from harness.types import (
    Answers,
    ArrayRow,
    Case,
    ClassAnswers,
    FeatureAnswers,
    MetricInfo,
    Probe,
    RowValues,
    Score,
)

NO_REFERENCE = "there are no answers of a retrained model (role retain)"
NO_CLASS = "no class is forgotten as a whole, or none of its test rows was asked"
SETS = ("forget", "retain", "test")
DISTANCES = ("mmd2", "mmd2_multi", "bures_w2", "sliced_w2")


def gone(case: Case) -> set[int]:
    """Classes of the forget rows that no retain row has."""
    forget, retain = ({row.label for row in rows} for rows in (case.forget, case.retain))  # type: ignore[union-attr]
    return forget - retain


class Seen:
    """The answers of one model: logits, labels and features by probe, cut to the rows that were asked."""

    def __init__(self, probes: Sequence[Probe], answers: Answers) -> None:
        self.logits: dict[str, np.ndarray] = {}
        self.labels: dict[str, np.ndarray] = {}
        self.features: dict[str, np.ndarray] = {}
        self.ids: dict[str, tuple[str, ...]] = {}
        self.why = ""
        for probe in probes:
            found, wanted = answers.probes.get(probe.name), tuple(row.id for row in probe.rows)
            count = len(found.ids) if isinstance(found, ClassAnswers) else 0
            if not isinstance(found, ClassAnswers) or not count or found.ids != wanted[:count]:
                raise DataError(
                    f"the answers to probe {probe.name!r} are {type(found).__name__} of {count} rows",
                    f"wanted class logits of its {len(wanted)} rows in order", "answer the probe again",
                )  # fmt: skip
            rows: list[ArrayRow] = list(probe.rows[:count])  # type: ignore[arg-type]
            self.ids[probe.name], self.logits[probe.name] = found.ids, np.asarray(found.logits, np.float64)
            self.labels[probe.name] = np.array([row.label for row in rows], dtype=np.int64)
            arrays = [self.logits[probe.name]]
            if isinstance(found, FeatureAnswers):
                self.features[probe.name] = np.asarray(found.features, np.float64)
                arrays.append(self.features[probe.name])
            if not all(np.isfinite(a).all() for a in arrays):
                self.why = f"answers to probe {probe.name} are NaN or infinite"

    def accuracy(self, name: str) -> float:
        """Share of a probe's rows whose first choice is right."""
        return float(circuits.hits(self.logits[name], self.labels[name]).mean())

    def accuracies(self) -> dict[str, float]:
        """On forget, retain and test rows."""
        return {name: self.accuracy(name) for name in SETS}

    def members(self) -> dict[str, float]:
        """Share of the forget rows that each attack calls members; non-members are test rows of retained classes.

        Empty when no such test row was asked.
        """
        kept = np.isin(self.labels["test"], np.unique(self.labels["retain"]))
        if not kept.any():
            return {}
        rows = [(self.logits[name], self.labels[name]) for name in ("forget", "retain")]
        return forgetting.called_members(*rows, (self.logits["test"][kept], self.labels["test"][kept]))

    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Features of as many forget as retain rows."""
        size = len(self.features["retain_sample"])
        return self.features["forget"][:size], self.features["retain_sample"]

    def probe(self) -> float | None:
        """Balanced accuracy of a linear probe for the forgotten classes, on test rows; None without some of both."""
        if "test_sample" not in self.features:
            return None
        inside = np.isin(self.labels["test_sample"], np.unique(self.labels["forget"]))
        new = self.features["test_sample"]
        if inside.all() or not inside.any():
            return None
        return forgetting.probe_accuracy(*self.samples(), new[inside], new[~inside])


def score(
    case: Case, probes: Sequence[Probe], answers: Answers, reference: Answers | None
) -> dict[str, Score]:
    """Every metric of `METRICS`."""
    own = Seen(probes, answers)
    other = Seen(probes, reference) if reference is not None else None
    why = own.why or (other.why if other is not None else "")
    if why:
        return {info.id: Score(None, why=why) for info in METRICS}
    out: dict[str, Score] = {}
    for name in SETS:
        hits = circuits.hits(own.logits[name], own.labels[name]).astype(np.float64)
        out[f"{name}.acc"] = mean_score(dict(zip(own.ids[name], hits.tolist(), strict=True)))
    count = len(own.ids["forget"])
    members = own.members()
    out["mia.acc"] = _mean(members.values(), count)
    recovered = own.probe()
    out["probe.acc"] = Score(recovered, n=len(own.ids.get("test_sample", ())), why=_no_class(recovered))
    if other is None:
        late = {info.id: Score(None, why=NO_REFERENCE) for info in METRICS if info.id not in out}
        return out | late
    mine, theirs = own.accuracies(), other.accuracies()
    out |= {f"{name}.acc.gap": Score(abs(mine[name] - theirs[name]), n=len(own.ids[name])) for name in SETS}
    out["tow"] = Score(forgetting.tow(mine, theirs), n=sum(len(own.ids[name]) for name in SETS))
    called = other.members()
    out["mia.gap"] = _mean([abs(members[a] - called[a]) for a in members], count)
    aim = other.probe()
    gap = None if recovered is None or aim is None else abs(recovered - aim)
    out["probe.gap"] = Score(gap, n=out["probe.acc"].n, why=_no_class(gap))
    kl = forgetting.divergence(own.logits["forget"], other.logits["forget"])
    out["output.divergence"] = mean_score(dict(zip(own.ids["forget"], kl.tolist(), strict=True)))
    return out | _distances(own, other) | _weights(answers)


def _mean(values: Iterable[float], n: int) -> Score:
    """The mean over attacks."""
    found = list(values)
    return Score(float(np.mean(found)), n=n) if found else Score(None, why="no test row of a retained class")


def _no_class(value: float | None) -> str:
    return NO_CLASS if value is None else ""


def _distances(own: Seen, other: Seen) -> dict[str, Score]:
    """Forget and retain features: how far apart in this model, against how far in the retrained one."""
    (x, y), (p, q) = own.samples(), other.samples()
    bandwidth = distances.median_distance(p, q)
    measures: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "mmd2": lambda a, b: distances.mmd2(a, b, bandwidth),
        "mmd2_multi": lambda a, b: distances.mmd2_multi(a, b, bandwidth),
        "bures_w2": distances.bures_w2,
        "sliced_w2": distances.sliced_w2,
    }
    out: dict[str, Score] = {}
    gaps = []
    for name, measure in measures.items():
        mine, theirs = measure(x, y), measure(p, q)
        alike = x.shape[1] == p.shape[1]
        shown = Score(measure(x, p), n=len(x)) if alike else Score(None, why="features differ in width")
        relative = abs(mine - theirs) / theirs if theirs > 0 else float("nan")
        gaps.append(relative)
        zero = "" if theirs > 0 else "in the retrained model forget and retain features coincide"
        out[f"features.{name}"] = Score(relative if not zero else None, n=len(x), why=zero)
        out[f"features.{name}.own"] = Score(mine, n=len(x))
        out[f"features.{name}.direct"] = shown
    whole = float(np.mean(gaps))
    lacking = "" if np.isfinite(whole) else "one of the four distances has no value"
    out["features.gap"] = Score(None if lacking else whole, n=len(x), why=lacking)
    return out


def _weights(answers: Answers) -> dict[str, Score]:
    gap, norm = (answers.probes.get(name) for name in ("weights.gap2", "weights.norm2"))
    if not isinstance(gap, RowValues) or not isinstance(norm, RowValues) or not gap.ids:
        why = gap.why if isinstance(gap, RowValues) else "the weights were not compared"
        return {"weights.error": Score(None, why=why)}
    pairs = {k: (a or 0.0, b or 0.0) for k, a, b in zip(gap.ids, gap.values, norm.values, strict=True)}
    total = sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values())
    layers = {k: (a / b) ** 0.5 if b else None for k, (a, b) in pairs.items()}
    return {"weights.error": Score(total**0.5, n=len(pairs), per_row=layers)}


_RETAIN = ("retain",)


def _metrics() -> Mapping[str, MetricInfo]:
    out: list[MetricInfo] = []
    for name, direction in (("forget", "none"), ("retain", "higher"), ("test", "higher")):
        text = f"Share of {name} rows whose class is recognised."
        if name == "forget":
            text += " The aim is the retrained model's share, which for a whole class is 0."
        out.append(MetricInfo(f"{name}.acc", direction, 0.0, 1.0, "share of rows", text))  # type: ignore[arg-type]
        text = f"Accuracy on {name} rows, distance from the retrained model's."
        out.append(MetricInfo(f"{name}.acc.gap", "lower", 0.0, 1.0, "share of rows", text, roles=_RETAIN))
    out.append(metric_info(forgetting.tow, "tow", "higher", roles=_RETAIN))
    text = "Share of forget rows that membership attacks, set on retain and test rows, call members: mean of four."
    out.append(metric_info(forgetting.called_members, "mia.acc", "none", text))
    text = "Distance of each membership attack's share of forget rows from the retrained model's, mean of four attacks."
    out.append(metric_info(forgetting.called_members, "mia.gap", "lower", text, roles=_RETAIN))
    out.append(metric_info(forgetting.probe_accuracy, "probe.acc", "none"))
    text = "Distance of the linear probe's accuracy from what it finds in the retrained model."
    out.append(metric_info(forgetting.probe_accuracy, "probe.gap", "lower", text, roles=_RETAIN))
    text = "KL(retrained || model) of the predicted distributions on forget rows."
    out.append(metric_info(forgetting.divergence, "output.divergence", "lower", text, roles=_RETAIN))
    for name in DISTANCES:
        measure = getattr(distances, name)
        text = (
            f"{name} between forget and retain features, |model's - retrained model's| / retrained model's."
        )
        out.append(metric_info(measure, f"features.{name}", "lower", text, roles=_RETAIN, unit="ratio"))
        text = (
            f"{name} between the model's forget and retain features (bandwidths are the retrained model's)."
        )
        out.append(metric_info(measure, f"features.{name}.own", "none", text, roles=_RETAIN))
        text = (
            f"{name} between the model's and the retrained model's forget features; depends on their bases."
        )
        out.append(metric_info(measure, f"features.{name}.direct", "lower", text, roles=_RETAIN))
    text = "Mean of the four relative gaps of feature distances (entanglement gap)."
    out.append(MetricInfo("features.gap", "lower", 0.0, None, "ratio", text, roles=_RETAIN, source=UNMERGE))
    text = "|W - W_retrained| / |W_retrained| over all parameters; rows are parameters."
    source = "Unmerge paper, App. E.8 (what the error is relative to is not given)"
    out.append(MetricInfo("weights.error", "lower", 0.0, None, "ratio", text, roles=_RETAIN, source=source))
    return {info.id: info for info in out}


METRICS: tuple[MetricInfo, ...] = tuple(_metrics().values())
"""The columns that every board of images has."""
