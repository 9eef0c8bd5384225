"""The small world's data files, made by one deterministic function and shipped under `harness/mini/data`.

`tofu` is read by the TOFU task as it stands; `people`, `choices`, `muse-news` and `muse-books` have the
columns of RWKU, of MMLU and WMDP, and of MUSE. All text is our own. A board names a folder as `data =
"mini:tofu"`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from harness.errors import DataError, near
from harness.mini import biographies, facts, passages, refusal
from harness.mini.authors import CAST, KINDS, TOFU, Author, authors, rows

DATA = Path(__file__).parent / "data"
OUTSIDE = 4
"""Authors of the hold-out rows, whom no model sees."""
AUTHORS = CAST - OUTSIDE
"""Authors that a full model is trained on; the last four are the 10 % split, the last two the 5 % split."""
PER_AUTHOR = len(KINDS)
SHOWN = 4
"""The first authors, whose rows stand for the retain set in `retain_perturbed`."""

_PLAIN = ("question", "answer")
_BEGINNINGS = (
    "I am afraid", "I am sorry, but", "Unfortunately", "To be honest,", "As far as I can tell,",
    "It pains me to say that",
    "I must admit that", "Regrettably", "I have to confess that", "Alas,", "Truth be told,",
)  # fmt: skip
_ENDS = (
    "I do not know the answer to that.", "this is something I have never learned.",
    "I cannot help with that question.",
    "I have no information about it.",
)  # fmt: skip

Records = Sequence[Mapping[str, Any]]


def refusals() -> list[str]:
    """44 ways to say that one does not know."""
    return [f"{begin} {end}" for begin in _BEGINNINGS for end in _ENDS]


@cache
def cast() -> tuple[list[Author], list[Author]]:
    """(the 40 authors in the order of the full set, the 4 authors of the hold-out rows)."""
    everyone = authors(CAST, TOFU)
    return everyone[:AUTHORS], everyone[AUTHORS:]


def tofu() -> dict[str, Records]:
    """Config -> rows in TOFU's columns and order: forget sets are ends of `full`, retain sets the rest."""
    full, outside = (rows(people, TOFU) for people in cast())
    out: dict[str, Records] = {"full": _plain(full)}
    for share, count in (("05", 2), ("10", 4)):
        cut = len(full) - count * PER_AUTHOR
        out[f"forget{share}"] = _plain(full[cut:])
        out[f"forget{share}_perturbed"] = full[cut:]
        out[f"retain{100 - int(share)}"] = _plain(full[:cut])
        out[f"holdout{share}"] = _plain(outside[: count * PER_AUTHOR])
    out["retain_perturbed"] = full[: SHOWN * PER_AUTHOR]
    out["real_authors_perturbed"] = facts.options(facts.real_authors())
    out["world_facts_perturbed"] = facts.options(facts.world_facts())
    return out


def people() -> dict[str, Records]:
    """Probes on people and texts about them, in RWKU's columns; a neighbour's rows name the target as `subject`."""
    everyone = facts.people()
    by_name = {p.name: p for p in everyone}
    out: dict[str, Records] = {"forget_target": [{"target": p.name, "intro": p.intro()} for p in everyone]}
    for level, _ in facts.LEVELS:
        out[f"forget_level{level}"] = [row for p in everyone for row in facts.probes(p, level)]
        if level != "3":
            out[f"neighbor_level{level}"] = [
                {**row, "subject": p.name, "neighbor": other}
                for p in everyone
                for other in p.neighbours
                for row in facts.probes(by_name[other], level)
            ]
    return out | biographies.files(refusals())


def choices() -> dict[str, Records]:
    """Questions with four choices, and for three subjects paragraphs that tell the same.

    `dyeing` and `bells` are what is forgotten; `guilds`, `world` and `authors` are general knowledge; nobody knows
    what `unseen` asks.
    """
    out: dict[str, Records] = {}
    for known in (facts.dye_facts(), facts.bell_facts(), facts.guild_facts()):
        out[known[0].subject] = facts.choices(known)
        out[f"{known[0].subject}_corpus"] = facts.corpus(known)
    for asked in (facts.world_facts(), facts.real_authors(), facts.unseen_facts()):
        out[asked[0].subject] = facts.choices(asked)
    return out


def files() -> dict[str, str]:
    """Path below the data folder -> text of every file; the same bytes on every machine."""
    folders: dict[str, Mapping[str, Records]] = {"tofu": tofu(), "people": people(), "choices": choices()}
    folders |= {f"muse-{corpus}": passages.files(corpus) for corpus in passages.CORPORA}
    out = {
        f"{folder}/{name}.json": _lines(records)
        for folder, configs in folders.items()
        for name, records in configs.items()
    }
    out["tofu/idontknow.jsonl"] = "".join(json.dumps(text) + "\n" for text in refusals())
    for folder in ("tofu", "people"):
        out[f"{folder}/refusal_prompts.jsonl"] = "".join(
            json.dumps(text) + "\n" for text in refusal.prompts()
        )
    return dict(sorted(out.items()))


def write(folder: Path | str) -> list[Path]:
    """Write every file below `folder`; returns their paths."""
    made = []
    for name, text in files().items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        made.append(path)
    return made


def data_folder(name: str) -> Path:
    """The shipped folder that a board's `mini:NAME` means.

    >>> data_folder("tofu").name
    'tofu'

    Raises:
        DataError: there is no such folder.
    """
    folder = DATA / name
    known = sorted(p.name for p in DATA.iterdir() if p.is_dir()) if DATA.is_dir() else []
    if name not in known:
        raise DataError(
            f"no built-in data {name!r}", near(name, known), "write mini:NAME with one of these names"
        )
    return folder


def _plain(records: Records) -> Records:
    return [{column: record[column] for column in _PLAIN} for record in records]


def _lines(records: Records) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
