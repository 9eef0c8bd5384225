"""Rules that the code keeps about itself: imports point down, names are sorted, help is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import harness

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "harness"

LEVELS = [
    {"errors"},
    {"specs"},
    {"types"},
    {
        "clock",
        "exact",
        "optim",
        "packing",
        "losses",
        "metrics",
        "parallel",
        "runs",
        "text",
        "reported",
        "vision",
    },
    {
        "scoring",
        "batches",
        "generate",
        "modadd",
        "recordtables",
        "plugins",
        "fits",
        "entries",
        "workspace",
        "tasks",
        "intervals",
        "bootstrap",
        "paired",
        "pareto",
        "profiles",
        "sparkline",
        "targets",
        "fluency",
        "gradnorm",
        "logs",
        "logfiles",
        "contained",
    },
    {
        "modadd_train",
        "blocks",
        "schedule",
        "models",
        "recordfiles",
        "tables",
        "cells",
        "overall",
        "tabletext",
        "tradeoffs",
        "answers",
        "supervise",
        "mini",
        "lmeval",
    },
    {
        "job",
        "jsd",
        "judge",
        "chains",
        "flat",
        "recordlines",
        "comparisons",
        "database",
        "scores",
        "rank",
        "preflight",
        "robustness",
    },
    {"loop", "edits", "select", "ingest", "store", "curves", "markup", "charts", "siteparts", "site"},
    {
        "session",
        "earlier",
        "asking",
        "measures",
        "worker",
        "recording",
        "pages",
        "render",
        "progress",
        "leaderboard",
        "comparetables",
        "diagnostics",
        "recordcheck",
        "sitecheck",
        "serve",
    },
    {"stages"},
    {"evaluate", "doctor", "importing", "sweep", "diagnose"},
    {"compareplan"},
    {"compare"},
    {"comparereport"},
    {"show", "publish", "siteworker", "sitecontent", "deploy"},
    {"shell"},
    {"cli_site"},
    {"cli_groups", "cli_compare", "cli_diagnose"},
    {"cli"},
]
"""From the bottom up: a module may import, at its top level, what stands in a line above it, or in its own."""

LIGHT = {
    "types",
    "specs",
    "errors",
    "clock",
    "rank",
    "leaderboard",
    "store",
    "plugins",
    "entries",
    "workspace",
    "runs",
    "preflight",
    "stages",
    "cli",
    "tasks",
}
"""Modules that must not load torch."""

HEAVY = ("torch", "vllm", "lm_eval", "duckdb", "transformers", "numpy", "pydantic", "pyarrow", "rich")


def top_level(path: Path) -> set[str]:
    """First parts below `harness` of what a file imports when it is imported."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "harness":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("harness.")}
    return {name for name in found if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()}


def level_of(name: str) -> int:
    for level, names in enumerate(LEVELS):
        if name in names:
            return level
    raise AssertionError(f"module harness.{name} has no place in the order of modules: add it to LEVELS")


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if "_bundled" not in p.parts]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if name == "__init__":
        return
    for other in top_level(path) - {name}:
        assert level_of(other) <= level_of(name), (
            f"harness.{name} imports harness.{other}, which stands above it"
        )


def test_the_order_names_no_module_that_is_gone() -> None:
    there = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in modules()}
    assert {name for names in LEVELS for name in names} <= there


def test_public_names_are_sorted_and_exist() -> None:
    assert harness.__all__ == sorted(harness.__all__)
    for name in harness.__all__:
        assert getattr(harness, name) is not None
    with pytest.raises(AttributeError):
        _ = harness.nothing  # type: ignore[attr-defined]


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import harness") == set()


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['uharness', '--help']\n"
    code += "from harness.cli import main\ntry: main()\nexcept SystemExit: pass"
    assert loaded_by(code) <= {"rich"}


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_light_modules_do_not_load_torch(name: str) -> None:
    assert not loaded_by(f"import harness.{name}") & {"torch", "transformers", "vllm", "lm_eval"}


def test_only_the_store_speaks_sql() -> None:
    speaking = {p.stem for p in modules() if "duckdb" in p.read_text().replace("uharness.duckdb", "")
                and "import duckdb" in p.read_text()}  # fmt: skip
    assert speaking <= {"store", "ingest", "database", "recordlines"}


def test_only_the_stages_know_no_task_by_name() -> None:
    for name in (
        "stages",
        "session",
        "asking",
        "measures",
        "worker",
        "loop",
        "job",
        "scoring",
        "supervise",
        "recording",
        "answers",
        "preflight",
    ):
        text = (PACKAGE / f"{name}.py").read_text()
        assert not {"bma", "tofu"} & set(ast.dump(ast.parse(text)).lower().replace("'", " ").split()), name


def test_site_and_submissions_are_no_packages() -> None:
    assert not (ROOT / "site" / "__init__.py").exists()
    assert not (ROOT / "submissions" / "__init__.py").exists()
