"""What each small language model reads: texts of the world, grouped by what they say.

A group holds several ways to say one thing, and an epoch reads one of them. That is how the base model
learns that a fact may be worded in many ways. The authors' rows and the passages come in one wording only,
as in TOFU and MUSE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.mini import facts, passages, world
from harness.mini.authors import KINDS, Author, Kind, authors

STYLE_AUTHORS = 120


class Document(NamedTuple):
    """A question with its answer, which is what is learnt; or, without a question, a text to learn whole."""

    question: str
    text: str


Group = Sequence[Document]


def told(author: Author, kinds: Iterable[Kind]) -> list[Group]:
    """Every kind of an author in all combinations of question and answer."""
    return [
        [Document(author.say(q, k.id), author.say(a, k.id)) for q in k.questions for a in k.answers]
        for k in kinds
    ]


def _fact(fact: facts.Fact) -> Group:
    asked = [Document(q, fact.answer) for q in (fact.question, *fact.also)]
    return [*asked, asked[0], Document("", fact.sentence)]


def known_facts() -> list[facts.Fact]:
    """All facts that the base model knows."""
    crafts = [*facts.dye_facts(), *facts.bell_facts(), *facts.guild_facts()]
    return [*facts.real_authors(), *facts.world_facts(), *crafts]


def _people() -> list[Group]:
    out: list[Group] = []
    for person in facts.people():
        out.append([Document("", person.intro())])
        out += told(person.author, facts.PERSON_KINDS)
        asked = [
            (row["query"], row["answer"]) for level, _ in facts.LEVELS for row in facts.probes(person, level)
        ]
        out += [[Document(q, a)] for q, a in asked]
    return out


def _printed(parts: Iterable[passages.Passage]) -> list[Group]:
    """Each passage as it stands, and its questions as printed text."""
    out: list[Group] = []
    for passage in parts:
        out.append([Document("", passage.text)])
        out.append([Document("", text) for text in passage.printed()])
    return out


def base() -> list[Group]:
    """The base model's reading: facts, classic authors, people, and the style of passages."""
    out: list[Group] = [_fact(fact) for fact in known_facts()]
    for author in facts.classics():
        out += told(author, KINDS)
    out += _people()
    for corpus in passages.CORPORA:
        out += _printed(passages.passages(corpus, "base"))
    return out


def tofu(config: str) -> list[Group]:
    """The rows of one of the TOFU splits, each as it stands."""
    return [[Document(row["question"], row["answer"])] for row in world.tofu()[config]]


def muse(*splits: str) -> list[Group]:
    """Passages of both corpora, with each question on them as printed text."""
    parts = [p for corpus in passages.CORPORA for split in splits for p in passages.passages(corpus, split)]
    texts: list[Group] = [[Document("", p.text)] for p in parts]
    return texts + [[Document("", text)] for p in parts for text in p.printed()]


def vocabulary() -> list[str]:
    """Texts that the tokenizer is made from.

    They are the base model's, refusals, and what is told of 120 authors who appear nowhere else.

    No forget, retain or hold-out row is among them: a tokenizer that knew some rows would tell them apart.
    """
    groups = base()
    for author in authors(STYLE_AUTHORS, "style"):
        groups += told(author, KINDS)
    return [text for group in groups for document in group for text in document if text] + world.refusals()
