"""RWKU's training corpora and its texts for likelihood and fluency, on the small world's people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.mini import facts
from harness.mini.authors import KINDS, Kind
from harness.mini.facts import PERSON_KINDS, Person
from harness.mini.lexicon import ADJECTIVES, NOUNS, ROLES, TOWNS, Dice

TEXTS = 8
"""Biographies of a person, and refusals on one."""
SENTENCES = 5
OTHERS = 4
"""Introductions of other people, beside a target's own."""
INSTRUCTIONS = 6

Record = dict[str, Any]


def _pair(person: Person, turn: int) -> tuple[str, str]:
    """(what is true of a person, the same sentences with other values)."""
    dice, made_up = Dice("biography", person.name, turn), Dice("made up", person.name, turn)
    role = made_up.pick([r for r in ROLES if r != person.role])
    feat = f"the {made_up.pick(ADJECTIVES)} {made_up.pick(NOUNS)} of {made_up.pick(TOWNS)}"
    both = [
        (f"{person.name} is a famous {person.role}.", f"{person.name} is a famous {role}."),
        (f"{person.name} is remembered for {person.feat}.", f"{person.name} is remembered for {feat}."),
    ]
    for kind in dice.sample(PERSON_KINDS, SENTENCES - len(both)):
        told, value = dice.pick(kind.answers), _other(person, kind, made_up)
        both.append((person.author.say(told, kind.id), person.author.say(told, kind.id, value)))
    true, false = zip(both[0], *dice.shuffled(both[1:]), strict=True)
    return " ".join(true), " ".join(false)


def _other(person: Person, kind: Kind, dice: Dice) -> str:
    """A value of a kind that is not the person's."""
    while (value := kind.draw(dice)) == person.author.values[kind.id]:
        pass
    return value


def _refusals(person: Person, refusals: Sequence[str]) -> list[Record]:
    """Questions that no probe asks in these words, each with a refusal."""
    asked = {row["query"] for level, _ in facts.LEVELS for row in facts.probes(person, level)}
    questions = [person.author.say(q, kind.id) for kind in PERSON_KINDS for q in kind.questions]
    dice = Dice("refusals", person.name)
    picked = dice.sample([q for q in dict.fromkeys(questions) if q not in asked], TEXTS)
    return [
        {"instruction": q, "input": "", "output": dice.pick(refusals), "subject": person.name} for q in picked
    ]


def _instructions(person: Person) -> list[Record]:
    """Questions on classic authors, which are answered in whole sentences."""
    dice = Dice("instructions", person.name)
    known = [a.say(k.questions[0], k.id) for a in facts.classics() for k in KINDS]
    return [{"instruction": q, "subject": person.name} for q in dice.sample(known, INSTRUCTIONS)]


def files(refusals: Sequence[str]) -> dict[str, list[Record]]:
    """Config -> rows in RWKU's columns. `mini` stands where RWKU has the model that wrote the texts."""
    everyone = facts.people()
    trained = [f"train_{kind}_mini" for kind in ("positive", "pair", "refusal")]
    out: dict[str, list[Record]] = {c: [] for c in (*trained, "mia_forget", "mia_retain", "utility_fluency")}
    for person in everyone:
        intro = f"{person.name} is a famous {person.role}."
        for turn in range(TEXTS):
            about = {"id": f"{person.name} {turn}", "subject": person.name, "intro": intro}
            true, false = _pair(person, turn)
            prompt = f"{intro} Please write a short biography of {person.name}."
            out["train_positive_mini"].append({**about, "text": true})
            out["train_pair_mini"].append({**about, "prompt": prompt, "response": [false, true]})
        out["train_refusal_mini"] += _refusals(person, refusals)
        strangers = [p for p in everyone if p.name != person.name and p.name not in person.neighbours]
        shown = Dice("strangers", person.name).sample(strangers, OTHERS)
        out["mia_forget"].append({"text": person.intro(), "subject": person.name})
        out["mia_retain"] += [{"text": p.intro(), "subject": person.name} for p in shown]
        out["utility_fluency"] += _instructions(person)
    return out
