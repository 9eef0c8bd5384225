"""Optimizers under equal wall-clock: the same loss, rows, batches per seed and seconds; only the optimizer differs.

The learning rate of every (loss, optimizer) is picked with the first seed, by the proxy on rows that the method may
see; then the picked rate runs with the other seeds. What picking cost is counted. All runs are ordinary records. The
comparison is a file that names them, written after every run: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from harness import comparisons, earlier, measures, preflight, stages
from harness.compareplan import NAME, Request, Trial, derived, identity, plan
from harness.comparisons import USABLE, Comparison, Measured, Pair, Rate, Slowest
from harness.preflight import Ready
from harness.runs import RunSpec
from harness.session import Session, locked
from harness.specs import Budget, Ledger, RunRecord, Selection
from harness.sweep import RETRIED, summary

SAME_TIME = 0.01
"""A recorded run belongs to a comparison when its budget in seconds is the comparison's within this share."""


class Runner:
    """Runs what a comparison lacks, and keeps its file up to date.

    Args:
        session: see `stages.Session`.
        ready: the board that is run.
        base: name of the board that was asked for.
        request: what is compared.
        line: called with a line for every run.
    """

    def __init__(
        self, session: Session, ready: Ready, base: str, request: Request, line: Callable[[str], None]
    ) -> None:
        self.session, self.ready, self.request, self._line = session, ready, request, line
        self.trials = plan(session, ready, request)
        board, seeds = ready.board, request.seeds or ready.board.seeds
        name = identity(ready, base, request, self.trials)
        known = comparisons.find(session.workspace.leaderboards).get(name)
        self.found = Comparison(
            id=name, base=base, board=board, board_version=board.board_version, hardware=preflight.hardware(),
            losses=tuple(dict.fromkeys(t.loss for t in self.trials)), optimizers=request.optimizers, seeds=seeds,
            cases=tuple(ready.cases()), overrides=dict(request.overrides), limit=session.limit,
            seconds=board.budget.seconds, until_slowest=request.until_slowest,
        ) if known is None else comparisons.read(known)  # fmt: skip

    def run(self) -> Comparison:
        """Everything that is missing, then the whole comparison; nothing of one that is complete."""
        if self.found.complete and not self.lacking():
            return self.found
        folder = self.session.workspace.runs / self.found.base / "comparisons" / self.found.id
        with locked(folder):
            return self._run()

    def lacking(self) -> list[str]:
        """Runs that the comparison names and no record has, or that failed and are worth another try."""
        names = self.found.boards()
        status = {r.run_id: r.status for board in names for r in self.session.store.load_records(board)}
        runs = [
            run
            for p in self.found.pairs
            for run in (*p.runs, *p.longer, *(r for x in p.rates for r in x.runs))
        ]
        return [run for run in dict.fromkeys(runs) if status.get(run, "failed") in RETRIED]

    def _run(self) -> Comparison:
        self._settle_time()
        for loss, optimizer in dict.fromkeys((t.loss, t.optimizer) for t in self.trials):
            self._pair([t for t in self.trials if (t.loss, t.optimizer) == (loss, optimizer)])
        if self.request.until_slowest:
            for loss in self.found.losses:
                self._continue(loss)
        self._save(complete=True)
        return self.found

    def _save(self, pair: Pair | None = None, **changes: Any) -> None:
        if pair is not None:
            others = [p for p in self.found.pairs if (p.loss, p.optimizer) != (pair.loss, pair.optimizer)]
            order = list(dict.fromkeys((t.loss, t.optimizer) for t in self.trials))
            changes["pairs"] = tuple(
                sorted([*others, pair], key=lambda p: order.index((p.loss, p.optimizer)))
            )
        self.found = self.found.model_copy(update=changes)
        comparisons.write(self.session.workspace.leaderboards[0], self.found)

    def _settle_time(self) -> None:
        """One budget in seconds for all runs: noted before, or that of runs that are there, or timed now."""
        steps = self.ready.board.budget.reference_steps
        if steps is None or self.found.seconds is not None:
            return
        step = (
            self.found.step_s or self.known_step() or stages.step_time(self.session, self.trials[0].specs[0])
        )
        self._save(step_s=step, seconds=step * steps)

    def known_step(self) -> float | None:
        """The reference step that most of the recorded runs had on this hardware; None where there are none."""
        found = Counter(
            r.budget["reference_step_s"]
            for t in self.trials for spec in t.specs for r in earlier.same_inputs(self.session, spec)
            if r.env.get("hardware") == self.found.hardware and r.status in USABLE
            and r.budget.get("reference_step_s")
        )  # fmt: skip
        return min(found, key=lambda s: (-found[s], s)) if found else None

    # one pair -------------------------------------------------------------------------------------------------------
    def _pair(self, trials: Sequence[Trial]) -> None:
        """Try the rates with the first seed, pick one, run it with the other seeds."""
        first, rates, several = trials[0], [], len(trials) > 1
        records: list[RunRecord] = []
        for trial in trials:
            runs = [self._ensure(spec, trial.lr, judged=several) for spec in trial.specs]
            records += runs
            proxy, why = self._proxy(runs) if several else (None, "")
            rates.append(Rate(lr=trial.lr, entry=trial.entry.id, runs=tuple(r.run_id for r in runs), proxy=proxy,
                              why=why))  # fmt: skip
        tuning = _ledger(records, sum(self._measured(r).proxy is not None for r in records))
        picked, why = pick(rates) if several else (trials[0].lr, "one rate: nothing was picked")
        pair = Pair(loss=first.loss, optimizer=first.optimizer, rates=tuple(rates), picked=picked, why=why,
                    tuning=tuning if several else Ledger(trainings=0, full_evaluations=0), total=tuning,
                    selection=self._selection(records) if several else Selection())  # fmt: skip
        self._save(pair)
        if picked is None:
            self._line(f"{first.loss} {first.optimizer}: no rate can be picked: {why}")
            return
        trial = next(t for t in trials if t.lr == picked)
        runs = list(next(r.runs for r in rates if r.lr == picked))
        for seed in self.found.seeds[1:]:
            for spec in stages.plan_runs(self.session, self.ready, trial.entry, [seed]):
                records.append(self._ensure(spec, trial.lr))
                runs.append(records[-1].run_id)
        total = _ledger(records, tuning.proxy_evaluations)
        old = self.found.pair(pair.loss, pair.optimizer) or pair
        self._save(old.model_copy(update={"runs": tuple(runs), "total": total}))

    def _proxy(self, runs: Sequence[RunRecord]) -> tuple[float | None, str]:
        """Mean over the cases; None, with the reason, where one of them has none."""
        for r in runs:
            if r.status not in USABLE:
                return None, f"{r.run_id} is {r.status}: {r.error}"
            if self._measured(r).proxy is None:
                return None, f"{r.run_id}: {self._measured(r).proxy_why}"
        values = [self._measured(r).proxy or 0.0 for r in runs]
        return sum(values) / len(values), ""

    def _measured(self, record: RunRecord) -> Measured:
        return self.found.measured.get(record.run_id, Measured(proxy_why="it was not measured"))

    def _selection(self, records: Sequence[RunRecord]) -> Selection:
        seen = next((m for r in records if (m := self._measured(r)).proxy_rows), Measured())
        return Selection(
            kind="proxy", proxy_rows=seen.proxy_rows, proxy_rows_in_probes=seen.proxy_rows_in_probes
        )

    def _ensure(
        self, spec: RunSpec, lr: float, *, ready: Ready | None = None, judged: bool = False
    ) -> RunRecord:
        """The record of a run with this comparison's time, made where there is none, and what is measured of it."""
        ready = ready or self.ready
        if ready is self.ready and self.found.step_s is not None:
            spec = spec.model_copy(update={"seconds": self.found.seconds, "step_s": self.found.step_s})
        wanted = (*(["proxy"] if judged else []), *(["jsd"] if "retain" in ready.board.models else []))
        label = f"{spec.submission} {spec.config.get(NAME)} lr {lr:g} {spec.case} seed {spec.seed}"
        record = self.known(spec, judged=judged)
        if record is not None:
            self._line(f"{label}: already recorded as {record.run_id}")
        else:
            record = stages.execute(self.session, ready, spec, wanted)
            self._line(f"{label}: {summary(record, ready.board.rank_by)}")
        if record.status in USABLE:
            self._measure(spec, record, wanted)
        return record

    def _measure(self, spec: RunSpec, record: RunRecord, wanted: Sequence[str]) -> None:
        folder = self.session.workspace.runs / record.board / record.run_id
        spec = spec.model_copy(update={"run_id": record.run_id})
        seen = self.found.measured.get(record.run_id, Measured())
        changes: dict[str, Any] = {}
        for name in wanted:
            if getattr(seen, name) is not None:
                continue
            note = measures.measure(self.session, spec, folder, name)
            changes |= {name: note["value"], f"{name}_why": note.get("why", "")}
            if name == "proxy" and "rows" in note:
                changes |= {"proxy_rows": note["rows"], "proxy_rows_in_probes": note["rows_in_probes"]}
        if changes:
            measured = {**self.found.measured, record.run_id: seen.model_copy(update=changes)}
            self._save(measured=measured)

    def known(self, spec: RunSpec, *, judged: bool) -> RunRecord | None:
        """A recorded run that has this comparison's inputs, hardware and time, and can be judged if it must be."""
        for r in earlier.same_inputs(self.session, spec):
            given = r.budget.get("seconds")
            timed = spec.seconds is None or (given is not None and abs(given / spec.seconds - 1) <= SAME_TIME)
            here = r.env.get("hardware") == self.found.hardware
            if here and timed and r.status not in RETRIED and (
                not judged or r.status not in USABLE or self._can_judge(r)
            ):  # fmt: skip
                return r
        return None

    def _can_judge(self, record: RunRecord) -> bool:
        folder = self.session.workspace.runs / record.board / record.run_id
        seen = self.found.measured.get(record.run_id)
        if seen is not None and seen.proxy is not None:
            return True
        return (folder / "proxy.json").exists() or (folder / "model").exists()

    # until the slowest ----------------------------------------------------------------------------------------------
    def _continue(self, loss: str) -> None:
        """Run the others of one loss again, with the seconds that the slowest optimizer took for the updates."""
        pairs = [p for p in self.found.pairs if p.loss == loss and p.runs]
        records = {r.run_id: r for r in self.session.store.load_records(self.ready.board.name)}
        means: dict[str, float] = {}
        for pair in pairs:
            charged = [records[run].charged_s for run in pair.runs if records[run].status in USABLE]
            if charged and all(c is not None for c in charged):
                means[pair.optimizer] = sum(c or 0.0 for c in charged) / len(charged)
        if len(means) < 2:
            self._line(f"{loss}: fewer than two optimizers have runs; nothing is continued")
            return
        slowest = max(sorted(means), key=means.__getitem__)
        kept = self.ready.board.budget
        budget = Budget(seconds=means[slowest], max_peak_gib=kept.max_peak_gib, hang_s=kept.hang_s)
        base = self.ready.board.model_copy(update={"name": self.found.base})
        board = derived(base, "until-slowest", budget)
        noted = Slowest(optimizer=slowest, seconds=means[slowest], board=board)
        self._save(slowest={**self.found.slowest, loss: noted})
        ready = dataclasses.replace(self.ready, board=board)
        for pair in pairs:
            if pair.optimizer == slowest:
                continue
            trial = next(t for t in self.trials
                         if (t.loss, t.optimizer, t.lr) == (loss, pair.optimizer, pair.picked))  # fmt: skip
            longer = [
                self._ensure(spec, trial.lr, ready=ready)
                for seed in self.found.seeds
                for spec in stages.plan_runs(self.session, ready, trial.entry, [seed])
            ]
            total = _sum(pair.total, _ledger(longer, 0))
            self._save(pair.model_copy(update={"longer": tuple(r.run_id for r in longer), "total": total}))


def pick(rates: Sequence[Rate]) -> tuple[float | None, str]:
    """The rate with the lowest proxy, the lower one of equals; None, with the reasons, where none has one."""
    known = [(r.proxy, r.lr) for r in rates if r.proxy is not None]
    if not known:
        return None, "; ".join(dict.fromkeys(r.why for r in rates))
    return min(known)[1], ""


def _ledger(records: Sequence[RunRecord], proxies: int) -> Ledger:
    """What some runs cost together."""
    own = [r.ledger for r in records]
    return Ledger(
        trainings=sum(x.trainings for x in own), proxy_evaluations=proxies,
        full_evaluations=sum(x.full_evaluations for x in own), charged_s=sum(x.charged_s for x in own),
        gpu_hours=sum(x.gpu_hours for x in own),
    )  # fmt: skip


def _sum(a: Ledger, b: Ledger) -> Ledger:
    return Ledger(**{k: getattr(a, k) + getattr(b, k) for k in Ledger.model_fields})
