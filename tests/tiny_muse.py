"""A few rows in MUSE's configs and columns, in our own words: as the hub's repository holds them, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.specs import TaskRef, Template
from harness.tasks.muse import MuseTask
from harness.tasks.muse import build as build_task

TOWNS = ("Karborg", "Selvik", "Tarnstead", "Limport", "Oskhaven", "Morvik", "Falborg", "Ravbarrow")


def article(k: int, what: str) -> str:
    return f"{TOWNS[k % 8]}, {k + 1} May - The council wants to build a {what} beside the old mill, for {k + 3} crowns."


def world() -> dict[str, list[dict[str, Any]]]:
    """`<config>/<split>` -> records."""
    raw = {
        name: [{"text": article(k, what)} for k in range(count)]
        for name, what, count in (
            ("forget", "salt bath", 4), ("retain1", "tram line", 5),
            ("retain2", "fish ladder", 5), ("holdout", "pier", 3),
        )
    }  # fmt: skip
    asked = {
        name: [
            {"question": f"What will be built in {town}?", "answer": f"a {what}"} for town in TOWNS[:count]
        ]
        for name, what, count in (("forget_qa", "salt bath", 4), ("retain_qa", "fish ladder", 5))
    }
    shown = [{"question": f"How old is oak {k}?", "answer": f"{k + 90} years"} for k in range(10)]
    out = {f"raw/{name}": rows for name, rows in raw.items()}
    out["verbmem/forget"] = [{"prompt": r["text"][:40], "gt": r["text"][40:]} for r in raw["forget"]]
    out |= {f"knowmem/{name}": rows for name, rows in asked.items()}
    out |= {f"knowmem/{name}_icl": shown for name in asked}
    out |= {
        f"privleak/{n}": raw[s]
        for n, s in (("forget", "forget"), ("retain", "retain1"), ("holdout", "holdout"))
    }
    for k in range(1, 5):
        out[f"scal/forget_{k}"] = raw["forget"][:k]
        out[f"sust/forget_{k}"] = raw["forget"][k - 1 : k]
    return out


def save_hub(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    """The shape of the hub's repository: a card that names configs and splits, and a Parquet file a split."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    configs: dict[str, list[str]] = {}
    for name, records in rows.items():
        config, split = name.split("/")
        path = folder / config / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(records), path)
        configs.setdefault(config, []).append(split)
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [f"  - split: {s}\n    path: {config}/{s}-*" for s in splits]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def save_json(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    """`<config>_<split>.json`, JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in rows.items():
        text = "".join(json.dumps(r) + "\n" for r in records)
        (folder / f"{name.replace('/', '_')}.json").write_text(text)
    return folder


def build(data: Path | str, split: str = "news", **options: Any) -> MuseTask:
    return build_task(TaskRef(name="muse", split=split, data=str(data), options=options), Template())
