"""Answers of models: those of a run, and those of the model roles that metrics compare with, cached."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness import preflight
from harness.errors import ReferenceError_, RunError
from harness.generate import choice
from harness.preflight import Ready
from harness.runs import RunSpec, done, mark_done
from harness.session import PATIENT, Session, locked
from harness.supervise import Outcome, run_stage


def ask(spec: RunSpec, folder: Path) -> Outcome:
    """The answers of a model: the texts first where the generator has a process of its own, then everything else."""
    for stage in ("answer",) if spec.generator == "hf" else ("write", "answer"):
        outcome = run_stage(f"harness.worker:{stage}", folder, limits=PATIENT)
        if not outcome.ok:
            return outcome
    return Outcome("ok")


def references(session: Session, ready: Ready, spec: RunSpec) -> dict[str, str]:
    """Folders with the answers of the model roles that the task's metrics need, made where they are not cached."""
    return {role: str(reference(session, ready, spec, role)) for role in ready.reference_roles}


def reference(session: Session, ready: Ready, spec: RunSpec, role: str) -> Path:
    """The answers of one role, cached by the hash of everything they depend on."""
    path, weights = spec.models[role], session.model_hash(spec.models[role])
    refuse_same(
        spec.board.name,
        role,
        {f"model.{role}": weights, "model.target": session.model_hash(spec.models["target"])},
    )
    key = preflight.reference_key(ready, spec.case, spec.seed, weights, spec.limit, spec.generator_kind)
    folder = session.workspace.build / "references" / key
    if not done(folder, "answer", key):
        session.progress(f"{spec.board.name} {spec.case}: answers of the {role} model", None)
        with locked(folder):
            spec.model_copy(update={"models": {"target": path}, "points": (), "references": {}}).write(folder)
            outcome = ask(spec, folder)
            if not outcome.ok:
                raise RunError(f"the {role} model of board {spec.board.name} gave no answers: {outcome.why}")
            mark_done(folder, "answer", key)
    return folder


def refuse_same(board: str, role: str, hashes: Mapping[str, str]) -> None:
    """A reference that is the model itself makes every comparison perfect: refuse it.

    The original is what a method starts from: its answers are the base of a gain, and it may be the target itself.
    """
    if role != "original" and hashes[f"model.{role}"] == hashes["model.target"]:
        raise ReferenceError_(
            f"role {role} of board {board} has the same weights as the target", f"both are {hashes['model.target']}",
            f"give a {role} model that was made without the forget rows",
        )  # fmt: skip


def make_references(session: Session, ready: Ready) -> list[str]:
    """Answers of every model role that the board's metrics need; one line each says where they are."""
    needed = {role for metric in ready.metrics.values() for role in metric.roles}
    missing = sorted(needed - set(ready.board.models))
    lines = [f"role {role}: the board names no such model; metrics that need it are null" for role in missing]
    if not needed:
        lines.append(f"no metric of board {ready.board.name} needs a reference")
    for seed in ready.board.seeds:
        for case in ready.cases():
            spec = reference_spec(session, ready, case, seed)
            for role, folder in references(session, ready, spec).items():
                lines.append(f"role {role}, {case}, seed {seed}: {folder.rpartition('/')[2]}")
    return lines


def reference_spec(session: Session, ready: Ready, case: str, seed: int) -> RunSpec:
    """What is asked of a reference model."""
    paths = ready.models(case, seed, session.workspace.roots, ())
    choice.check_models(session.generator, paths.values())
    return RunSpec(
        run_id="reference", board=ready.board, entry="reference", submission="reference", case=case, seed=seed,
        updates=1, data=ready.data, models=paths, limit=session.limit, generator=session.generator,
        threads=preflight.threads(),
    )  # fmt: skip
