"""`uharness diagnose` from one end to the other, on built-in models."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Ran, write_board
from tiny_text import random_llama

from harness import scoring
from harness.diagnostics.work import block_outputs, matrices, spread
from harness.scoring import pad
from harness.store import Store

Command = Callable[..., Ran]
STOP = '[stop]\nmetric = "forget.p"\nat_most = 0.1\n'


def run_ids(workspace: Path, board: str = "tiny") -> list[str]:
    return sorted(p.stem for p in (workspace / "leaderboards" / board / "results").glob("*.json"))


def stored(workspace: Path, run: str, kind: str) -> list[dict[str, Any]]:
    names = ("name", "block", "role", "measure", "step", "updates", "charged_s", "value", "why")
    sql = f"SELECT {', '.join(names)} FROM diagnostics WHERE run_id = '{run}' AND kind = '{kind}'"
    _, rows = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb").query(sql)
    return [dict(zip(names, row, strict=True)) for row in rows]


def check_pictures(folder: Path) -> set[str]:
    """All SVG files of a folder are well formed, and have a title and points; their names."""
    for path in folder.glob("*.svg"):
        tree = xml.dom.minidom.parse(str(path))
        assert tree.documentElement.getAttribute("xmlns") == "http://www.w3.org/2000/svg"
        assert tree.getElementsByTagName("title")[0].firstChild is not None
        assert tree.getElementsByTagName("circle")
        assert "prefers-color-scheme:dark" in path.read_text()
    return {p.stem for p in folder.glob("*.svg")}


def test_a_run_of_modular_addition_from_weights_to_database(uharness: Command, workspace: Path) -> None:
    board = write_board(workspace, "tiny", budget="updates = 2")
    board.write_text(board.read_text().replace(STOP, "").replace('"full"', "32"))
    assert uharness("submit", "grad_diff", "no_op", "--board", "tiny", "--trajectory").code == 0
    mine, still = run_ids(workspace)
    ran = uharness("diagnose", mine, "--gradients", "4", "--limit", "64")
    assert ran.code == 0, ran.err
    assert "block 0      moved by" in ran.out
    found = {
        kind: stored(workspace, mine, kind) for kind in ("norms", "drift", "covariance", "losses", "path")
    }
    assert all(found.values())
    # updates: of every parameter, and summed up
    size = {n["name"]: n["value"] for n in found["norms"] if n["measure"] == "fro" and n["role"] != "all"}
    whole = next(n for n in found["norms"] if (n["name"], n["role"], n["measure"]) == ("all", "all", "fro"))
    parts = [v for name, v in size.items() if "." in name]
    assert whole["value"] == pytest.approx(sum(v**2 for v in parts) ** 0.5)
    assert whole["updates"] == 2
    way = next(
        n
        for n in found["norms"]
        if n["measure"] == "way_per_update" and n["name"] == "all" and n["role"] == "all"
    )
    assert 2 * way["value"] >= whole["value"] * (1 - 1e-9)
    # losses: the method's own is retain minus forget at every look, and the first look is the start
    losses = {(n["name"], n["step"]): n["value"] for n in found["losses"]}
    steps = sorted({step for _, step in losses})
    assert steps == [0, 1, 2]
    for step in steps:
        assert losses["total", step] == pytest.approx(
            losses["retain", step] - losses["forget", step], abs=1e-6
        )
    assert losses["forget", steps[-1]] > losses["forget", 0]
    # covariances: three matrices, three gradients at both ends, the best fit above every Kronecker product
    cosines = {(n["name"], n["step"], n["measure"]): n["value"] for n in found["covariance"]}
    assert {name for name, *_ in cosines} == {"output.weight", "mlp_in.weight", "mlp_out.weight"}
    assert {m.split(".")[0] for _, step, m in cosines if step == 0} == {"total", "forget", "retain"}
    assert {m.split(".")[0] for _, step, m in cosines if step == 1} == {"total"}
    for (name, step, measure), value in cosines.items():
        if measure.startswith("total.cosine."):
            assert 0 <= value <= 1 + 1e-5
            if "soap" not in measure and "diagonal" not in measure:
                assert value <= cosines[name, step, "total.cosine.best_kronecker"] + 1e-5
    assert {n["measure"] for n in found["path"]} >= {"forget.p", "retain.p"}
    pictures = check_pictures(workspace / "runs/tiny" / mine / "diagnostics")
    assert {"update-fro", "drift-relative", "objective-updates", "loss-charged_s", "path"} <= pictures
    assert any(name.startswith("covariance-mlp-in") for name in pictures)
    # what stands still
    ran = uharness(
        "diagnose", still, "--what", "norms,drift,losses,covariance", "--gradients", "2", "--limit", "8"
    )
    assert ran.code == 0, ran.err
    assert {n["value"] for n in stored(workspace, still, "norms") if n["measure"] in ("fro", "relative")} == {
        0.0
    }
    drift = stored(workspace, still, "drift")
    assert {n["value"] for n in drift if n["measure"] == "relative"} == {0.0}
    assert all(n["value"] > 0 for n in drift if n["measure"] == "retain_model.relative")
    lost = [n for n in stored(workspace, still, "losses") if n["name"] == "total"]
    assert {(n["value"], n["why"]) for n in lost} == {(None, "the method gives no loss to `fit`")}
    assert "the method gives no loss to `fit`" in ran.out


def test_several_runs_their_components_and_exports(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "random_label", "grad_diff", "--board", "tiny").code == 0
    runs = run_ids(workspace)
    ran = uharness("diagnose", *runs, "--json", "out.json", "--csv", "-")
    assert ran.code == 0, ran.err
    lines = json.loads((workspace / "out.json").read_text())["lines"]
    assert len(list(csv.DictReader(io.StringIO(ran.out)))) == len(lines)
    ends = {n["run_id"]: n["value"] for n in lines if n["measure"] == "pc1" and n["block"] is None}
    assert set(ends) == {*runs, ""}  # the retain model has no run
    shares = [n["value"] for n in lines if n["measure"].startswith("explained.") and n["block"] is None]
    assert sum(shares) == pytest.approx(1.0)
    (folder,) = (workspace / "build/diagnostics").glob("pca-*")
    assert check_pictures(folder) == {"pca"}
    mine = [n for n in stored(workspace, runs[0], "pca") if n["measure"] == "pc1" and n["block"] is None]
    assert [(n["name"], n["value"]) for n in mine] == [(folder.name, ends[runs[0]])]
    ran = uharness("diagnose", *runs, "--what", "norms,losses", "--limit", "16")
    assert ran.code == 0, ran.err
    assert ran.out.index(f"{runs[0]}:") < ran.out.index(f"{runs[1]}:")
    (folder,) = (workspace / "build/diagnostics").glob("runs-*")
    assert {"update-fro", "objective-updates", "forget-updates"} <= check_pictures(folder)
    assert {n["measure"] for n in stored(workspace, runs[0], "pca")} == {
        "pc1",
        "pc2",
        "explained.pc1",
        "explained.pc2",
    }


def test_the_table_outlives_rescoring_and_a_new_database(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "random_label", "--board", "tiny").code == 0
    (run,) = run_ids(workspace)
    assert uharness("diagnose", run, "--what", "norms").code == 0
    before = stored(workspace, run, "norms")
    assert uharness("rescore", run).code == 0
    assert uharness("db", "rebuild").code == 0
    assert stored(workspace, run, "norms") == before
    record = json.loads((workspace / f"leaderboards/tiny/results/{run}.json").read_text())
    assert "diagnostics.parquet" in record["rows"]


def test_what_cannot_be_diagnosed_is_one_line(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "random_label", "--board", "tiny", "--no-keep-model").code == 0
    assert uharness("submit", "grad_diff", "--board", "tiny").code == 0
    kept, gone = run_ids(workspace)
    for arguments, told in [
        ((gone,), "has no kept weights"),
        ((kept[:-1],), f"did you mean {kept}"),
        ((kept, "--what", "norm"), "did you mean norms"),
        ((kept, "--matrices", "("), "is no regular expression"),
        ((kept, "--matrices", "mlp_inn"), "fits no matrix"),
        ((kept, "--texts"), "has no points along its way"),
        ((kept, "--ablate"), "has no ablate(job, rows)"),
        ((kept, kept), "named twice"),
        ((kept, "--metric", "forget.p"), "belong to --power-sweep"),
        ((), "needs runs, or --power-sweep"),
        (("--power-sweep", "--board", "tiny", "--metric", "forget.q"), "did you mean forget.p"),
        (("--power-sweep", "--board", "tiny"), "no ranked run with the optimizer spectral_power"),
    ]:
        ran = uharness("diagnose", *arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
        assert told in ran.err
    (workspace / "runs/tiny" / kept / "trajectory.parquet").unlink()
    assert "submit it again with --again --trajectory" in uharness("diagnose", kept, "--what", "path").err


def test_runs_from_different_starts_have_no_common_components(uharness: Command, workspace: Path) -> None:
    board = write_board(workspace, "tiny")
    board.write_text(board.read_text().replace('cases = ["M4"]', 'cases = ["M4", "M16"]'))
    assert uharness("submit", "random_label", "--board", "tiny").code == 0
    ran = uharness("diagnose", *run_ids(workspace))
    assert ran.code == 2
    assert "did not start where" in ran.err


@pytest.mark.slow
def test_a_text_run_with_texts_along_the_way(uharness: Command, workspace: Path) -> None:
    text = (ROOT / "leaderboards" / "tofu-mini.toml").read_text()
    text = re.sub(r"reference_steps = \d+", "updates = 2", text).replace("effective = 16", "effective = 4")
    (workspace / "leaderboards" / "few.toml").write_text(text)
    ran = uharness(
        "submit", "npo", "--board", "few", "--seed", "0", "--limit", "6", "--trajectory", "--set", "alpha=1"
    )
    assert ran.code == 0, ran.err
    (run,) = run_ids(workspace, "few")
    some = ("--gradients", "3", "--limit", "16", "--matrices", r"layers\.1\.(mlp\.up|self_attn\.o)_proj")
    ran = uharness("diagnose", run, "--texts", *some)
    assert ran.code == 0, ran.err
    losses = {(n["name"], n["step"]): n["value"] for n in stored(workspace, run, "losses")}
    assert losses["total", 0] == pytest.approx(
        13.8629 + losses["retain", 0], abs=1e-3
    )  # NPO at its own reference
    cosines = {
        n["measure"]: n["value"] for n in stored(workspace, run, "covariance") if "up_proj" in n["name"]
    }
    assert {"total.cosine.soap", "total.cosine.soap.one_sided", "total.kronecker.diagonal"} <= set(cosines)
    assert {n["block"] for n in stored(workspace, run, "drift") if n["measure"] == "relative"} == {0, 1, 2, 3}
    along = [
        n for n in stored(workspace, run, "path") if n["measure"] == "util.own_fluency" and n["name"] == "run"
    ]
    record = json.loads((workspace / f"leaderboards/few/results/{run}.json").read_text())
    assert along[-1]["value"] == pytest.approx(record["scores"]["util.own_fluency"]["value"])
    assert "path" in check_pictures(workspace / "runs/few" / run / "diagnostics")


# --- pieces that need a model ---------------------------------------------------------------------------------------
def test_block_outputs_are_those_before_the_final_norm() -> None:
    model = random_llama(20)
    inputs = pad([[1, 5, 6, 7], [1, 8, 9]], [2, 1], 0, torch.arange(2), "cpu")
    hooks = [len(block._forward_hooks) for block in model.model.layers]
    with torch.no_grad():
        found = block_outputs(model, inputs)
        assert [len(block._forward_hooks) for block in model.model.layers] == hooks
        theirs = scoring.forward(model, inputs, (0, 1)).hidden
    torch.testing.assert_close(found[0], theirs[0])
    torch.testing.assert_close(model.model.norm(found[1]), theirs[1])


def test_matrices_of_the_middle_and_the_last_block_are_the_default() -> None:
    model = random_llama(20)
    names = ["mlp.down_proj", "mlp.up_proj", "self_attn.o_proj"]
    assert sorted(matrices(model)) == [f"model.layers.{k}.{name}.weight" for k in (0, 1) for name in names]
    assert list(matrices(model, r"layers\.1.*q_proj")) == ["model.layers.1.self_attn.q_proj.weight"]
    with pytest.raises(ValueError, match="no matrix fits"):
        matrices(model, "nothing")


def test_rows_are_spread_over_the_whole_set() -> None:
    assert spread(list(range(10)), 5) == [0, 2, 4, 6, 8]  # type: ignore[arg-type]
    assert spread([], 5) == []
