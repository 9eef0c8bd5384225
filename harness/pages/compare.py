"""What the page that compares entries is made from: the cells of a board as shown, and the runs behind them."""

from __future__ import annotations

from typing import Any

from harness.cells import points_of, values_at
from harness.markup import cut, slug
from harness.pages.content import BoardPage, Files
from harness.pages.downloads import script
from harness.pages.names import BODY, names_of
from harness.pages.words import year_of
from harness.tables import cell_text, heading


def compare_files(board: BoardPage) -> Files:
    """The script that the page loads for a board."""
    return {f"data/compare/{slug(board.board.name)}.js": script("board", compare_data(board))}


def compare_data(board: BoardPage) -> dict[str, Any]:
    """What the compare page needs: each entry's cells as shown, and its value at every (case, seed).

    `values` has a list a column, one number a unit, the mean over repeats; null where a run has none.
    """
    table, names = board.table, names_of(board.table)
    by_id = {r.run_id: r for r in board.records}
    rows = table.section(*BODY)
    grouped = [points_of([by_id[i] for i in row.run_ids if i in by_id]) for row in rows]
    units = sorted({key for points in grouped for key in points})
    entries = []
    for row, points in zip(rows, grouped, strict=True):
        values = [values_at(column, points) for column in table.columns]
        entries.append({
            "entry": str(cut(row.entry, 200)), "title": str(cut(names[row.entry], 120)), "section": row.section,
            "group": row.group, "rank": row.rank, "method": slug(row.submission), "runs": f"{row.runs}/{row.planned}",
            "cells": [[cell_text(cell), cell.mean, cell.why] for cell in row.cells],
            "values": [[found.get(unit, (None, ""))[0] for unit in units] for found in values],
        })  # fmt: skip
    return {
        "name": board.board.name,
        "title": board.board.title or board.board.name,
        "page": slug(board.board.name),
        "version": board.board.board_version,
        "year": year_of(by_id[i] for row in rows for i in row.run_ids if i in by_id),
        "rankBy": board.board.rank_by,
        "columns": [
            {"id": c.id, "head": heading(c), "text": c.info.text, "direction": c.info.direction,
             "target": c.info.target}
            for c in table.columns
        ],
        "units": [[str(cut(case, 120)), seed] for case, seed in units],
        "entries": entries,
    }  # fmt: skip
