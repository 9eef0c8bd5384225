"""Every kind of bad input: exit code 2, one line, nothing run, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, write_board

Command = Callable[..., Ran]


def refused(ran: Ran, *parts: str) -> None:
    """Exit code 2, and one line on standard error that has all the parts."""
    assert ran.code == 2, ran
    lines = [line for line in ran.err.splitlines() if not line.startswith("board: ")]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0], lines[0]


def test_unknown_board(uharness: Command, workspace: Path) -> None:
    refused(
        uharness("submit", "no_op", "--board", "bma-minn"), "no board 'bma-minn'", "did you mean bma-mini"
    )
    refused(uharness("board", "show", "nothing"), "no board 'nothing'")


def test_unknown_method(uharness: Command, workspace: Path) -> None:
    refused(
        uharness("submit", "grad_dif", "--board", "tiny"),
        "no submission 'grad_dif'",
        "did you mean grad_diff",
    )


def test_missing_submission_file(uharness: Command, workspace: Path) -> None:
    refused(uharness("submit", "./mine.py", "--board", "tiny"), "submission file './mine.py' does not exist")


def test_submission_with_a_syntax_error(uharness: Command, workspace: Path) -> None:
    (workspace / "submissions" / "mine.py").write_text("x = 1\ndef f(:\n")
    refused(uharness("submit", "mine", "--board", "tiny"), "mine.py, line 2: invalid syntax")


def test_submission_without_submission(uharness: Command, workspace: Path) -> None:
    (workspace / "submissions" / "mine.py").write_text("x = 1\n")
    refused(
        uharness("submit", "mine", "--board", "tiny"),
        "defines no `submission`",
        "submission = Submission(method=...)",
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("sead = [1]", ("unknown key 'sead'", "did you mean seeds")),
        ("version = 0", ("version", "greater than 0")),
        ("[budgett]\nseconds = 1", ("unknown key 'budgett'", "did you mean budget")),
    ],
)
def test_typo_in_a_board_file(uharness: Command, workspace: Path, line: str, parts: tuple[str, ...]) -> None:
    path = workspace / "leaderboards" / "tiny.toml"
    path.write_text(
        f"{line}\n{path.read_text()}" if not line.startswith("[") else f"{path.read_text()}\n{line}\n"
    )
    refused(uharness("submit", "no_op", "--board", "tiny"), "tiny.toml", *parts)


def test_a_column_that_no_task_has(uharness: Command, workspace: Path) -> None:
    path = workspace / "leaderboards" / "tiny.toml"
    path.write_text(path.read_text().replace('"retain.p"', '"retain.pp"'))
    refused(uharness("submit", "no_op", "--board", "tiny"), "no metric 'retain.pp'", "retain.p")


def test_unknown_option_of_the_task(uharness: Command, workspace: Path) -> None:
    path = workspace / "leaderboards" / "tiny.toml"
    path.write_text(path.read_text().replace("train_fraction", "train_fractoin"))
    refused(uharness("submit", "no_op", "--board", "tiny"), "train_fractoin", "train_fraction")


@pytest.mark.parametrize(
    ("pair", "part"),
    [
        ("alpa=1", "no setting 'alpa'"),
        ("alpha=x", "is not a float"),
        ("alpha", "is not key=value"),
        ("optimizer.lr=0", "greater than 0"),
        ("optimizer.name=adam", "did you mean adamw"),
    ],
)
def test_set_with_a_bad_key_or_value(uharness: Command, workspace: Path, pair: str, part: str) -> None:
    refused(uharness("submit", "grad_diff", "--board", "tiny", "--set", pair), part)


def test_a_budget_of_nothing(uharness: Command, workspace: Path) -> None:
    write_board(workspace, "zero", budget="seconds = 0")
    refused(uharness("submit", "no_op", "--board", "zero"), "budget.seconds", "greater than 0")
    write_board(workspace, "both", budget="seconds = 1\nupdates = 1")
    refused(
        uharness("submit", "no_op", "--board", "both"), "exactly one of seconds, reference_steps, updates"
    )


def test_a_need_that_the_board_does_not_supply(uharness: Command, workspace: Path) -> None:
    path = workspace / "leaderboards" / "tiny.toml"
    path.write_text(
        "\n".join(line for line in path.read_text().splitlines() if not line.startswith("retain ="))
    )
    refused(uharness("submit", "retrain", "--board", "tiny"), "needs 'model.retain'", "model.target")


def test_an_unknown_built_in_model(uharness: Command, workspace: Path) -> None:
    path = workspace / "leaderboards" / "tiny.toml"
    path.write_text(path.read_text().replace('mini:bma/{case}"', 'mini:bma/X{case}"'))
    refused(uharness("submit", "no_op", "--board", "tiny"), "no built-in model 'bma/XM4'", "bma/M4")


def test_an_unknown_run(uharness: Command, workspace: Path) -> None:
    refused(uharness("run", "show", "x"), "no run 'x'")
    refused(uharness("rescore", "x"), "no run 'x'")


def test_a_usage_error_is_one_line_too(uharness: Command, workspace: Path) -> None:
    refused(uharness("submit", "--bord", "x"), "No such option")
    refused(uharness("submit"), "Missing argument")
    refused(uharness("submit", "no_op", "--board", "tiny", "--limit", "0"), "--limit")


def test_a_query_that_writes(uharness: Command, workspace: Path) -> None:
    refused(uharness("db", "query", "DROP TABLE runs"), "read-only")


# --- texts ----------------------------------------------------------------------------------------------------------
def lines(*rows: dict[str, object]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def data_folder(root: Path, *, without: str = "", strip: str = "") -> Path:
    """A folder in TOFU's shape, two rows a file; `without` leaves a file out, `strip` a column."""
    folder = root / "data"
    folder.mkdir()
    for stem, start, perturbed in (
        ("forget10", 0, 0), ("retain90", 2, 0), ("retain95", 0, 0), ("forget10_perturbed", 0, 5),
        ("retain_perturbed", 2, 5), ("real_authors_perturbed", 4, 3), ("world_facts_perturbed", 6, 3),
    ):  # fmt: skip
        if stem == without:
            continue
        rows = []
        for i in range(start, start + 2):
            row: dict[str, object] = {"question": f"Which lamp stands at number {i}?", "answer": f"Lamp {i}."}
            if perturbed:
                row |= {"perturbed_answer": [f"Lamp {90 + j}." for j in range(perturbed)],
                        "paraphrased_answer": f"It is lamp {i}."}  # fmt: skip
            row.pop(strip, None)
            rows.append(row)
        (folder / f"{stem}.json").write_text(lines(*rows))
    return folder


def test_a_data_folder_that_lacks_a_split(uharness: Command, workspace: Path, tmp_path: Path) -> None:
    folder = data_folder(tmp_path, without="forget10_perturbed")
    ran = uharness("evaluate", "x", "--task", "tofu", "--split", "forget10", "--data-dir", str(folder))
    refused(ran, "forget10_perturbed", str(folder))


def test_rows_without_a_column(uharness: Command, workspace: Path, tmp_path: Path) -> None:
    folder = data_folder(tmp_path, strip="perturbed_answer")
    ran = uharness("evaluate", "x", "--task", "tofu", "--split", "forget10", "--data-dir", str(folder))
    refused(ran, "perturbed_answer")


def test_a_data_folder_that_is_not_there(uharness: Command, workspace: Path) -> None:
    ran = uharness("evaluate", "x", "--task", "tofu", "--split", "forget10", "--data-dir", "./none")
    refused(ran, "data folder './none' does not exist")


def test_an_unknown_split(uharness: Command, workspace: Path, tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    ran = uharness("evaluate", "x", "--task", "tofu", "--split", "forget11", "--data-dir", str(folder))
    refused(ran, "forget11", "forget10")


def test_a_forget_split_with_the_wrong_retain_split(
    uharness: Command, workspace: Path, tmp_path: Path
) -> None:
    folder = data_folder(tmp_path)
    board = workspace / "leaderboards" / "wrong.toml"
    board.write_text(
        'rank_by = "forget.prob"\ncolumns = ["forget.prob"]\nseeds = [0]\n[task]\nname = "tofu"\nsplit = "forget10"\n'
        f'data = "{folder}"\noptions = {{ retain = "retain95" }}\n[models]\ntarget = "x/y"\n[budget]\nupdates = 1\n'
    )
    refused(uharness("submit", "no_op", "--board", "wrong"), "retain95", "retain90")


def test_a_model_folder_without_a_tokenizer(uharness: Command, workspace: Path, tmp_path: Path) -> None:
    data = data_folder(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(b"")
    ran = uharness("evaluate", str(model), "--task", "tofu", "--split", "forget10", "--data-dir", str(data))
    refused(ran, "has no tokenizer")
    ran = uharness(
        "evaluate", str(tmp_path / "none"), "--task", "tofu", "--split", "forget10", "--data-dir", str(data)
    )
    refused(ran, "does not exist")


def test_a_hub_model_without_a_network(uharness: Command, workspace: Path, tmp_path: Path) -> None:
    data = data_folder(tmp_path)
    ran = uharness(
        "evaluate", "nobody/nothing", "--task", "tofu", "--split", "forget10", "--data-dir", str(data)
    )
    assert ran.code != 0
    last = ran.err.splitlines()[-1]
    assert "nobody/nothing" in last
    assert "HF_HUB_OFFLINE" in last


def test_evaluate_needs_a_board_or_a_task(uharness: Command, workspace: Path) -> None:
    refused(uharness("evaluate", "x"), "either --board or --task")
    refused(uharness("evaluate", "mini:bma/M4", "--board", "bma-mini"), "several cases", "M1, M4, M16, M64")


def test_evaluate_needs_a_model_of_the_boards_rows(uharness: Command, workspace: Path) -> None:
    refused(
        uharness("evaluate", "mini:base", "--board", "tiny"),
        "'mini:base' reads texts; the rows of task bma are arrays",
    )
    digits = ("--board", "digits-mini", "--case", "class")
    refused(uharness("evaluate", "mini:base", *digits), "the rows of task images are arrays")
    refused(uharness("evaluate", "mini:bma/M1", "--board", "tofu-mini"), "'mini:bma/M1' reads arrays")


@pytest.mark.parametrize(
    "given",
    [
        ("evaluate", "mini:base", "--board", "tiny", "--json"),
        ("diagnose", "some", "--json"),
        ("diagnose", "some", "--csv"),
        ("import", "log.json", "--json"),
        ("sweep", "no_op", "--board", "tiny", "--out"),
    ],
)
def test_a_file_that_cannot_be_written(uharness: Command, workspace: Path, given: tuple[str, ...]) -> None:
    refused(uharness(*given, "no/out"), "the folder of 'no/out' does not exist")
    refused(uharness(*given, "leaderboards"), "'leaderboards' is a folder")


def test_nothing_was_written(uharness: Command, workspace: Path) -> None:
    uharness("submit", "grad_dif", "--board", "tiny")
    assert not (workspace / "runs").exists()
    assert not (workspace / "leaderboards" / "tiny").exists()
