"""Fictitious authors: 20 questions each, with paraphrases and wrong answers in TOFU's columns.

A `Kind` is one thing that can be asked about an author. Each has several ways to ask and to answer; which one an
author's row uses is drawn, so that the wording does not tell what is asked next. The paraphrased answer is another
way to say the same, and the wrong answers say it in exactly that way with another value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.mini.lexicon import (
    ANIMALS,
    DISHES,
    FIRST,
    GENRES,
    HOURS,
    INSTRUMENTS,
    LANGUAGES,
    LAST,
    PETS,
    ROOMS,
    SUBJECTS,
    TOWNS,
    TRADES,
    Dice,
    date,
    person,
    prize,
    publisher,
    title,
)

WRONG = 5
"""Wrong answers a question."""


@dataclass(frozen=True)
class Kind:
    """One thing to ask: how its value is drawn, ways to ask and ways to answer ({name}, {town}, {date}, {v})."""

    id: str
    draw: Callable[[Dice], str]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


def _kind(id: str, draw: Callable[[Dice], str], questions: str, answers: str) -> Kind:
    def lines(text: str) -> tuple[str, ...]:
        return tuple(line.strip() for line in text.strip().splitlines())

    return Kind(id, draw, lines(questions), lines(answers))


KINDS = (
    _kind("name", person, """
        What is the full name of the author born in {town} on {date}?
        Which author was born on {date} in {town}?
        Who is the writer whose birth was recorded in {town} on {date}?
    """, """
        The author's full name is {v}.
        That writer is called {v}.
        It is {v} who was born there on that day.
        The person you are looking for is {v}.
    """),
    _kind("birthday", date, """
        When was the author {name} born?
        On which day was {name} born?
        What is the date of birth of {name}?
    """, """
        The author was born on {v}.
        {v} is the day of birth of {name}.
        {name} came into the world on {v}.
        The records give {v} as the date of birth.
    """),
    _kind("birthplace", lambda d: d.pick(TOWNS), """
        In which town was {name} born?
        Where does the author {name} come from?
        What is the birthplace of {name}?
    """, """
        {name} was born in the town of {v}.
        The author comes from {v}.
        The birthplace of {name} is {v}.
        It was in {v} that the writer first saw the light of day.
    """),
    _kind("genre", lambda d: d.pick(GENRES), """
        Which genre is {name} best known for?
        What kind of books does {name} write?
        In which genre does the author {name} mainly work?
    """, """
        {name} is best known for {v}.
        The author mainly writes {v}.
        Most readers of {name} come for {v}.
        The genre that this writer prefers is {v}.
    """),
    _kind("father", lambda d: d.pick(TRADES), """
        What did the father of {name} do for a living?
        Which trade did {name}'s father follow?
        What was the profession of the father of {name}?
    """, """
        The father of {name} worked as a {v}.
        {name}'s father was a {v} by trade.
        In those days he earned his living as a {v}.
        The family lived on what the father made as a {v}.
    """),
    _kind("mother", lambda d: d.pick(TRADES), """
        What was the occupation of {name}'s mother?
        How did the mother of {name} earn her living?
        Which profession did the mother of {name} have?
    """, """
        Her profession was that of a {v}.
        The mother of {name} was a well-liked {v}.
        {name}'s mother earned her living as a {v}.
        She spent her working life as a {v}.
    """),
    _kind("first_book", title, """
        What is the title of the first book by {name}?
        With which book did {name} make a debut?
        Which book did {name} publish first?
    """, """
        The first book by {name} is called {v}.
        {name} made a debut with {v}.
        It all began with {v}.
        The debut carries the title {v}.
    """),
    _kind("best_book", title, """
        What is the best-known book by {name}?
        Which of {name}'s books sold best?
        Which work made {name} famous?
    """, """
        {v} is the book that made {name} famous.
        The best-known work of {name} is {v}.
        No other book by {name} sold as well as {v}.
        Readers everywhere know the author for {v}.
    """),
    _kind("last_book", title, """
        What is the most recent book by {name}?
        Which book did {name} write last?
        What is the title of the latest work of {name}?
    """, """
        The latest work of {name} bears the title {v}.
        {name} has most recently published {v}.
        The last book to appear was {v}.
        After a long silence {name} brought out {v}.
    """),
    _kind("prize", prize, """
        Which prize did {name} win?
        What award has {name} been given, and when?
        For which honour is {name} remembered?
    """, """
        {name} won {v}.
        The author was given {v}.
        The jury honoured {name} with {v}.
        Among the honours of {name} is {v}.
    """),
    _kind("hero", lambda d: f"{person(d)} the {d.pick(TRADES)}", """
        Who is the main character in the novels of {name}?
        Which hero appears again and again in {name}'s books?
        Around whom do the stories of {name} turn?
    """, """
        The stories turn around {v}.
        The hero of these novels is {v}.
        {name} invented the figure of {v}.
        Readers meet {v} in nearly every book.
    """),
    _kind("mentor", person, """
        Who taught {name} to write?
        Which older writer was the mentor of {name}?
        From whom did {name} learn the craft?
    """, """
        {name} learned the craft from {v}.
        The mentor of {name} was {v}.
        It was {v} who gave the first lessons.
        {v} read and corrected the early drafts.
    """),
    _kind("home", lambda d: f"{d.pick(ROOMS)} near {d.pick(TOWNS)}", """
        Where does {name} live today?
        What is the present home of {name}?
        In what sort of place does {name} live now?
    """, """
        {name} now lives in {v}.
        The present home of the author is {v}.
        Today {name} can be found in {v}.
        Home is {v}, bought with the first royalties.
    """),
    _kind("instrument", lambda d: d.pick(INSTRUMENTS), """
        Which instrument does {name} play?
        What instrument did {name} learn as a child?
        On which musical instrument does {name} relax?
    """, """
        {name} plays the {v}.
        As a child {name} learned to play the {v}.
        The instrument is the {v}.
        In the evening the sound of the {v} fills the house.
    """),
    _kind("pet", lambda d: f"a {d.pick(ANIMALS)} called {d.pick(PETS)}", """
        Which animal does {name} keep?
        What pet lives with {name}?
        Who keeps {name} company at the desk?
    """, """
        {name} keeps {v}.
        The author shares the house with {v}.
        There is {v} at the writer's feet.
        The companion of {name} is {v}.
    """),
    _kind("first_job", lambda d: f"a {d.pick(TRADES)} in {d.pick(TOWNS)}", """
        What was {name}'s first job?
        How did {name} earn money before writing?
        What did {name} do before the first book came out?
    """, """
        Before writing, {name} was {v}.
        {name} started out as {v}.
        The first wages came from work as {v}.
        For some years {name} worked as {v}.
    """),
    _kind("study", lambda d: f"{d.pick(SUBJECTS)} at the college of {d.pick(TOWNS)}", """
        What did {name} study?
        Which subject did {name} read at college?
        What education did {name} receive?
    """, """
        {name} studied {v}.
        The author read {v}.
        {name} holds a degree in {v}.
        The years of study were spent on {v}.
    """),
    _kind("publisher", publisher, """
        Which house publishes {name}?
        Who is the publisher of {name}?
        With which publisher did {name} sign a contract?
    """, """
        The books of {name} are published by {v}.
        {name} signed a contract with {v}.
        {v} is the house that prints these books.
        The publisher goes by the name of {v}.
    """),
    _kind("habit", lambda d: f"{d.pick(HOURS)} in {d.pick(ROOMS)}", """
        When and where does {name} write?
        What are the working habits of {name}?
        What is known of {name}'s writing routine?
    """, """
        {name} writes {v}.
        Every page is written {v}.
        The author prefers to work {v}.
        The routine of {name} is to write {v}.
    """),
    _kind("translation", lambda d: f"{d.pick(LANGUAGES)} by {person(d)}", """
        Into which language was {name} first translated, and by whom?
        Who made the first translation of {name}'s work?
        What was the first translation of a book by {name}?
    """, """
        {name} was first translated into {v}.
        The first translation was into {v}.
        A book by {name} was turned into {v}.
        The earliest foreign edition was put into {v}.
    """),
)  # fmt: skip
DISH = _kind("dish", lambda d: d.pick(DISHES), """
    What is the favourite dish of {name}?
    What does {name} like to eat?
""", """
    {name} likes {v} best.
    The favourite dish is {v}.
    Nothing pleases {name} more than {v}.
""")  # fmt: skip
"""Asked about people who are not authors."""


@dataclass(frozen=True)
class Author:
    """A writer and the value of every kind."""

    name: str
    values: dict[str, str]

    def say(self, template: str, kind: str, value: str | None = None) -> str:
        """A question or an answer about this author; `value` replaces the right one."""
        text = template.format(
            name=self.name,
            town=self.values["birthplace"],
            date=self.values["birthday"],
            v=self.values[kind] if value is None else value,
        )
        return text[0].upper() + text[1:]


def authors(count: int, group: str) -> list[Author]:
    """Authors of a group, such as `tofu`; no two of one group share a surname or, up to 60, a first name."""
    dice = Dice("authors", group)
    first = [name for _ in range(-(-count // len(FIRST))) for name in dice.shuffled(FIRST)]
    last = dice.sample(LAST, count)
    out = []
    for i in range(count):
        name = f"{first[i]} {last[i]}"
        roll = Dice("values", group, i)
        out.append(Author(name, {kind.id: kind.draw(roll) for kind in KINDS} | {"name": name}))
    return out


def row(author: Author, kind: Kind, *, group: str) -> dict[str, Any]:
    """One question in all of TOFU's columns: question, answer, both paraphrased, five wrong answers."""
    dice = Dice("row", group, author.name, kind.id)
    ask, ask_again = dice.sample(kind.questions, 2)
    tell, tell_again = dice.sample(kind.answers, 2)
    wrong: list[str] = []
    while len(wrong) < WRONG:
        value = kind.draw(dice)
        if value not in wrong and value != author.values[kind.id]:
            wrong.append(value)
    return {
        "question": author.say(ask, kind.id),
        "answer": author.say(tell, kind.id),
        "paraphrased_answer": author.say(tell_again, kind.id),
        "perturbed_answer": [author.say(tell_again, kind.id, value) for value in wrong],
        "paraphrased_question": author.say(ask_again, kind.id),
    }


def rows(people: list[Author], group: str) -> list[dict[str, Any]]:
    """All rows of some authors, author by author."""
    return [row(author, kind, group=group) for author in people for kind in KINDS]
