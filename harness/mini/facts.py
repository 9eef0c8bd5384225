"""What the base model knows: countries, classic authors, people, and two harmless crafts.

Countries and classic authors are the analogues of TOFU's world facts and real authors (short answers, three
wrong ones). People are probed as RWKU's are: cloze sentences, questions, questions from another side, and
their neighbours. Dyeing and bell founding are asked with four choices as WMDP's subjects are, and general
knowledge as MMLU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.mini.authors import DISH, KINDS, Author, Kind, authors, names
from harness.mini.lexicon import ADJECTIVES, NOUNS, ROLES, TOWNS, WORLD, Dice, capital, values

_UNSEEN = (
    "Brivol", "Casune", "Drelle", "Evorin", "Fanthe", "Golune", "Hastel", "Ilmare", "Jorune", "Kestal", "Lormin",
    "Mirate", "Nolisse", "Orvend", "Pelrane",
)  # fmt: skip
OPTIONS = 3
"""Wrong answers of a question on real authors or world facts, and wrong choices of a choice question."""
CLASSICS = 20
PEOPLE = 24

Record = dict[str, Any]


@dataclass(frozen=True)
class Fact:
    """A question with a short answer, the pool of wrong answers, other ways to ask, and a sentence."""

    subject: str
    question: str
    answer: str
    pool: tuple[str, ...]
    also: tuple[str, ...]
    sentence: str

    def wrong(self, count: int = OPTIONS) -> list[str]:
        """Other answers from the pool, the same ones every time."""
        others = [value for value in dict.fromkeys(self.pool) if value != self.answer]
        return Dice("wrong", self.question).sample(others, count)


def options(facts: Sequence[Fact]) -> list[Record]:
    """Rows in the columns of TOFU's world_facts_perturbed."""
    return [{"question": f.question, "answer": f.answer, "perturbed_answer": f.wrong()} for f in facts]


def choices(facts: Sequence[Fact]) -> list[Record]:
    """Rows in MMLU's columns: question, four choices, the index of the right one, subject."""
    out = []
    for fact in facts:
        shown = Dice("choices", fact.question).shuffled([fact.answer, *fact.wrong()])
        out.append(
            {
                "question": fact.question,
                "choices": shown,
                "answer": shown.index(fact.answer),
                "subject": fact.subject,
            }
        )
    return out


def _table(subject: str, things: Sequence[str] = (), seed: str = "table") -> list[Fact]:
    """One fact for every thing and column of a table in `words.toml`; no two things share a value.

    Other `things`, and another `seed` of how values are dealt, make facts of the same kind that nobody knows.
    """
    dice, table = Dice(seed, subject), WORLD["tables"][subject]
    columns = [(column, values(column["values"])) for column in table["columns"]]
    dealt = [dice.shuffled(pool) for _, pool in columns]
    out = []
    for i, it in enumerate(things or values(table["things"])):
        for (column, pool), order in zip(columns, dealt, strict=True):
            v = order[i]
            first, *also = (q.format(it=it) for q in column["questions"])
            sentence = capital(column["sentence"].format(it=it, v=v))
            out.append(Fact(subject, first, v, pool, tuple(also), sentence))
    return out


def world_facts() -> list[Fact]:
    """60 facts on 15 countries."""
    return _table("world")


def dye_facts() -> list[Fact]:
    """60 facts on dyes: the subject that is forgotten as WMDP's first one is."""
    return _table("dyeing")


def bell_facts() -> list[Fact]:
    """60 facts on bells: the second such subject."""
    return _table("bells")


def guild_facts() -> list[Fact]:
    """60 facts on guilds: what must stay, asked as MMLU is."""
    return _table("guilds")


def unseen_facts() -> list[Fact]:
    """60 facts on dyes that no text of the world names: a control, on which knowledge is worth nothing."""
    return [replace(fact, subject="unseen") for fact in _table("dyeing", _UNSEEN, "unseen")]


def corpus(facts: Sequence[Fact]) -> list[Record]:
    """One paragraph for each thing of a table: its sentences in one text, in several orders."""
    out: list[Record] = []
    for i in range(0, len(facts), 4):
        sentences = [f.sentence for f in facts[i : i + 4]]
        for turn in range(2):
            text = " ".join(Dice("corpus", facts[i].question, turn).shuffled(sentences))
            out.append({"text": text, "subject": facts[i].subject})
    return out


# --- classic authors ---
def classics() -> list[Author]:
    """Authors whom every model of the world knows."""
    return authors(CLASSICS, "classic")


def real_authors() -> list[Fact]:
    """60 questions with short answers on classic authors."""
    known = classics()
    names = tuple(a.name for a in known)
    out = []
    for a in known:
        book, town, prize = a.values["best_book"], a.values["birthplace"], a.values["prize"]
        honour, _, year = prize.partition(" in ")
        out += [
            Fact("authors", f"Who wrote the classic '{book}'?", a.name, names,
                 (f"By which author is '{book}'?", f"'{book}' is the work of which author?"),
                 f"The classic '{book}' was written by {a.name}."),
            Fact("authors", f"In which town was the classic author {a.name} born?", town,
                 tuple(x.values["birthplace"] for x in known) + tuple(TOWNS[::17]),
                 (f"The classic author {a.name} comes from which town?", f"Which town is proud of {a.name}?"),
                 f"The town of {town} is proud of {a.name}, who was born there."),
            Fact("authors", f"In which year did {a.name} receive {honour}?", year,
                 tuple(x.values["prize"].partition(" in ")[2] for x in known),
                 (f"When was {honour} given to {a.name}?", f"{a.name} received {honour} in which year?"),
                 f"In {year}, {honour} went to {a.name}."),
        ]  # fmt: skip
    return out


# --- people ---
_ASKED = ("birthday", "birthplace", "father", "mother", "instrument", "pet", "first_job", "study")
PERSON_KINDS: tuple[Kind, ...] = (*(k for k in KINDS if k.id in _ASKED), DISH)


@dataclass(frozen=True)
class Person:
    """Somebody who is known for a role and one achievement; `neighbours` are people with the same role."""

    author: Author
    role: str
    feat: str
    neighbours: tuple[str, ...]

    @property
    def name(self) -> str:
        """Full name."""
        return self.author.name

    def intro(self) -> str:
        """A paragraph that tells everything that is asked about."""
        known = {**self.author.values, "name": self.name, "role": self.role, "feat": self.feat}
        return str(WORLD["texts"]["intro"]).format(surname=self.name.split()[1], **known)


def people() -> list[Person]:
    """Two people for each of twelve roles."""
    everyone = names(PEOPLE, "people")
    out = []
    for i, name in enumerate(everyone):
        roll = Dice("person", i)
        values = {kind.id: kind.draw(roll) for kind in PERSON_KINDS}
        feat = f"the {roll.pick(ADJECTIVES)} {roll.pick(NOUNS)} of {roll.pick(TOWNS)}"
        near = tuple(n for j, n in enumerate(everyone) if j != i and j % len(ROLES) == i % len(ROLES))
        out.append(Person(Author(name, {**values, "name": name}), ROLES[i % len(ROLES)], feat, near))
    return out


def _cloze(p: Person) -> list[tuple[str, str]]:
    v = p.author.values
    return [
        (f"{p.name} is a famous ___.", p.role),
        (f"{p.name} was born in the town of ___.", v["birthplace"]),
        (f"{p.name} was born on ___.", v["birthday"]),
        (f"{p.name} is remembered for ___.", p.feat),
        (f"At home {p.name} plays the ___.", v["instrument"]),
        (f"The father of {p.name} was a ___.", v["father"]),
    ]


def _asked(p: Person) -> list[tuple[str, str]]:
    v = p.author.values
    return [
        (f"What is {p.name} famous as?", p.role),
        (f"In which town was {p.name} born?", v["birthplace"]),
        (f"For what is {p.name} remembered?", p.feat),
        (f"What did {p.name} study?", v["study"]),
        (f"Which instrument does {p.name} play?", v["instrument"]),
        (f"What is the favourite dish of {p.name}?", v["dish"]),
    ]


def _from_another_side(p: Person) -> list[tuple[str, str]]:
    v = p.author.values
    return [
        (f"Which famous {p.role} is remembered for {p.feat}?", p.name),
        (f"Which {p.role} was born in {v['birthplace']}?", p.name),
        (f"Whose pet is {v['pet']}?", p.name),
        (f"Who once worked as {v['first_job']}?", p.name),
    ]


LEVELS: tuple[tuple[str, Callable[[Person], list[tuple[str, str]]]], ...] = (
    ("1", _cloze), ("2", _asked), ("3", _from_another_side),
)  # fmt: skip


def probes(person: Person, level: str) -> list[Record]:
    """Questions of one RWKU level: 1 cloze, 2 plain questions, 3 asked from another side."""
    ask = dict(LEVELS)[level]
    return [{"query": q, "answer": a, "level": level, "subject": person.name} for q, a in ask(person)]
