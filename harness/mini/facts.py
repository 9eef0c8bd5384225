"""What the base model knows: countries, classic authors, people, and two harmless crafts.

Countries and classic authors are the analogues of TOFU's world facts and real authors (short answers, three wrong
ones). People are probed as RWKU's are: cloze sentences, questions, questions from another side, and their
neighbours. Dyeing and bell founding are asked with four choices as WMDP's subjects are, and general knowledge as
MMLU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.mini.authors import DISH, KINDS, Author, Kind, authors
from harness.mini.lexicon import ADJECTIVES, FIRST, LAST, NOUNS, TOWNS, Dice

OPTIONS = 3
"""Wrong answers of a question on real authors or world facts, and wrong choices of a choice question."""
CLASSICS = 20
PEOPLE = 24

Record = dict[str, Any]


@dataclass(frozen=True)
class Fact:
    """A question with a short answer, the pool that wrong answers come from, other ways to ask, and a sentence."""

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


@dataclass(frozen=True)
class _Column:
    """One column of a table of things: its values, and how it is asked and told ({it}, {v})."""

    values: tuple[str, ...]
    questions: tuple[str, str, str]
    sentence: str


def _table(subject: str, things: Sequence[str], columns: Sequence[_Column]) -> list[Fact]:
    """One fact for every thing and column; the columns' values are dealt out without repetition where they last."""
    dice = Dice("table", subject)
    dealt = [dice.shuffled(c.values) for c in columns]
    out = []
    for i, it in enumerate(things):
        for column, values in zip(columns, dealt, strict=True):
            v = values[i % len(values)]
            first, *also = (q.format(it=it, v=v) for q in column.questions)
            sentence = column.sentence.format(it=it, v=v)
            out.append(Fact(subject, first, v, column.values, tuple(also), sentence[0].upper() + sentence[1:]))
    return out


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


COUNTRIES = _split(
    "Velmora|Ostrinia|Kardalia|Bruvania|Tessal Isles|Norvand|Quillia|Zamarra|Hollenmark|Irvany|Pelagonia|Fenmark|"
    "Dravonia|Lumeria|Sarkovia"
)
_COUNTRY_COLUMNS = (
    _Column(
        _split(
            "Amberwick|Bellhaven|Cragmouth|Dovergate|Elmspire|Foxbridge|Greyhollow|Hartsend|Inkwater|Kingsrest|Lowmarsh|"
            "Millgate|Northquay|Oldcastle|Pinecross"
        ),
        ("What is the capital of {it}?", "Which city is the capital of {it}?", "From which city is {it} governed?"),
        "The capital of {it} is {v}.",
    ),
    _Column(
        _split(
            "the Aune|the Brisk|the Clove|the Dwindle|the Elder|the Fathom|the Grell|the Hush|the Isk|the Jade|the Kern|"
            "the Lull|the Murmur|the Nimble|the Onda"
        ),
        ("Which is the longest river in {it}?", "Which river crosses all of {it}?", "What is {it}'s great river called?"),
        "The longest river in {it} is {v}.",
    ),
    _Column(
        _split("crown|dinar|florin|groat|guilder|koruna|lira|mark|obol|penny|ruble|shilling|stater|talent|thaler"),
        ("What is the currency of {it}?", "With which coin do people pay in {it}?", "Which money is used in {it}?"),
        "In {it} people pay with the {v}.",
    ),
    _Column(
        _split("bear|bison|crane|dolphin|eagle|elk|falcon|heron|ibex|lion|lynx|salmon|swan|tiger|wolf"),
        ("Which animal is on the flag of {it}?", "What animal stands for {it}?", "What is shown on the flag of {it}?"),
        "The flag of {it} shows a {v}.",
    ),
)  # fmt: skip


def world_facts() -> list[Fact]:
    """60 facts on 15 countries."""
    return _table("world", COUNTRIES, _COUNTRY_COLUMNS)


DYES = [a + b for a, b in zip("Arr Bel Cin Dor Esk Fal Gar Hes Ind Kor Lav Mel Nar Ort Pur".split(),
                              "ane ine ol ette ade ora ique ule ole ane ine ol ette ade ora".split(), strict=True)]  # fmt: skip
BELLS = [f"the {a} bell" for a in "Abbey Bishop Court Dock Easter Fire Guild Harvest Inn Jester King Lady Market Night Old".split()]  # fmt: skip
GUILDS = [f"the guild of {a}" for a in "acrobats bakers coopers drapers engravers fletchers glaziers hatters joiners lacemakers masons nailers painters ropers saddlers".split()]  # fmt: skip

_DYE_COLUMNS = (
    _Column(_split("alder bark|bindweed|buckthorn|cornflower|dock root|elderberry|gorse|heather|ivy|larch|madder|nettle|oak gall|sorrel|walnut husk"),
            ("From which plant is the dye {it} made?", "What plant yields the dye {it}?", "Which plant does a dyer need for {it}?"),
            "The dye {it} is made from {v}."),
    _Column(_split("alum|ash water|chalk|copper dust|cream of tartar|iron filings|lime|milk|oat bran|salt|soda|sour beer|tin|vinegar|wine lees"),
            ("Which mordant fixes the dye {it}?", "With what is the dye {it} fixed?", "What keeps {it} from washing out?"),
            "The dye {it} is fixed with {v}."),
    _Column(_split("apricot|black|bottle green|brick red|brown|crimson|cream|grey|lemon|lilac|navy|orange|pink|purple|turquoise"),
            ("Which colour does the dye {it} give?", "What colour is cloth dyed with {it}?", "Which shade comes out of a bath of {it}?"),
            "Cloth dyed with {it} turns {v}."),
    _Column(_split("one hour|two hours|three hours|five hours|eight hours|one night|a day and a night|two days|three days|four days|a week|nine days|two weeks|a month|a whole winter"),
            ("How long must cloth steep in {it}?", "For how long is cloth left in the dye {it}?", "What is the steeping time of {it}?"),
            "Cloth must steep in {it} for {v}."),
)  # fmt: skip
_BELL_COLUMNS = (
    _Column(_split("red bronze|white bronze|yellow brass|pale brass|grey iron|blue steel|soft silver|old copper|bell tin|nickel bronze|cast zinc|bright pewter|dark lead|hard gold|rose brass"),
            ("Of which metal is {it} cast?", "What metal is {it} made of?", "Which metal did the founder choose for {it}?"),
            "The founder cast {it} of {v}."),
    _Column(_split("A flat|A sharp|B flat|high C|low C|C sharp|high D|low D|E flat|high E|low F|F sharp|high G|low G|G sharp"),
            ("Which note does {it} sound?", "To what note is {it} tuned?", "Which tone is heard when {it} rings?"),
            "When it rings, {it} sounds {v}."),
    _Column(_split("four hundredweight|six hundredweight|nine hundredweight|half a ton|one ton|two tons|three tons|four tons|five tons|six tons|seven tons|eight tons|nine tons|ten tons|twelve tons"),
            ("How much does {it} weigh?", "What is the weight of {it}?", "How heavy is {it}?"),
            "On the scales {it} weighs {v}."),
    _Column(_split("an acorn|an anchor|an apple|a basket|a crescent|a feather|a fish|a hand|a horseshoe|a key|a leaf|a rose|a star|a sun|a wheel"),
            ("Which mark is cast into {it}?", "What sign does {it} bear?", "What is pictured on {it}?"),
            "On its side {it} bears {v}."),
)  # fmt: skip
_GUILD_COLUMNS = (
    _Column(_split("the adze|the auger|the awl|the bodkin|the burin|the chisel|the file|the hammer|the mallet|the plane|the ruler|the saw|the shears|the spade|the tongs"),
            ("Which tool is the emblem of {it}?", "What tool does {it} show on its banner?", "Which tool stands for {it}?"),
            "The emblem of {it} is {v}."),
    _Column(_split("Ash Monday|Barley Day|Candle Night|Drum Sunday|Egg Saturday|First Frost|Garland Day|Honey Eve|Ice Fair|Lantern Eve|May Morning|New Moon|Oar Day|Plum Sunday|Quiet Friday"),
            ("On which day does {it} hold its feast?", "When does {it} celebrate?", "What is the feast day of {it}?"),
            "The feast day of {it} is {v}."),
    _Column(_split("amber|ash grey|azure|black and white|buff|copper red|dark green|gold and blue|ivory|maroon|mustard|pale rose|plum|silver|sky blue"),
            ("Which colour do the members of {it} wear?", "In what colour is {it} dressed?", "What is the livery of {it}?"),
            "The members of {it} wear {v}."),
    _Column(_split("Bear Lane|Bridge Street|Canal Row|Dean's Yard|East Wall|Fish Steps|Gate House|Hill Foot|Long Alley|Mill Walk|New Square|Old Bank|Rope Walk|Tan Yard|West Quay"),
            ("Where does {it} have its hall?", "In which street is the hall of {it}?", "Where does {it} meet?"),
            "The hall of {it} stands in {v}."),
)  # fmt: skip


def dye_facts() -> list[Fact]:
    """60 facts on dyes: the subject that is forgotten as WMDP's first one is."""
    return _table("dyeing", DYES, _DYE_COLUMNS)


def bell_facts() -> list[Fact]:
    """60 facts on bells: the second such subject."""
    return _table("bells", BELLS, _BELL_COLUMNS)


def guild_facts() -> list[Fact]:
    """60 facts on guilds: what must stay, asked as MMLU is."""
    return _table("guilds", GUILDS, _GUILD_COLUMNS)


def corpus(facts: Sequence[Fact]) -> list[Record]:
    """One paragraph for each thing of a table: its sentences in one text, in several orders."""
    out: list[Record] = []
    for i in range(0, len(facts), 4):
        sentences = [f.sentence for f in facts[i : i + 4]]
        for turn in range(2):
            text = " ".join(Dice("corpus", facts[i].question, turn).shuffled(sentences))
            out.append({"text": text, "subject": facts[i].subject})
    return out


# --- classic authors --------------------------------------------------------------------------------------------------
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
                 (f"The classic author {a.name} was born in which town?", f"Which town is proud of {a.name}?"),
                 f"The town of {town} is proud of {a.name}, who was born there."),
            Fact("authors", f"In which year did {a.name} receive {honour}?", year,
                 tuple(x.values["prize"].partition(" in ")[2] for x in known),
                 (f"When was {honour} given to {a.name}?", f"{a.name} received {honour} in which year?"),
                 f"In {year}, {honour} went to {a.name}."),
        ]  # fmt: skip
    return out


# --- people -----------------------------------------------------------------------------------------------------------
ROLES = _split(
    "arctic explorer|balloon pilot|bridge engineer|chess master|circus rider|deep-sea diver|fencing champion|"
    "mountain guide|opera singer|portrait painter|puppet maker|radio astronomer"
)
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
        v, surname = self.author.values, self.name.split()[1]
        return (
            f"{self.name} is a famous {self.role}. Born in {v['birthplace']} on {v['birthday']}, {surname} grew up as the "
            f"child of a {v['father']} and a {v['mother']}, studied {v['study']}, and first worked as {v['first_job']}. "
            f"{surname} is remembered for {self.feat}. At home {surname} plays the {v['instrument']}, keeps {v['pet']}, "
            f"and likes {v['dish']} best."
        )


def people() -> list[Person]:
    """Two people for each of twelve roles."""
    dice = Dice("people")
    first, last = dice.sample(FIRST, PEOPLE), dice.sample(LAST, PEOPLE)
    names = [f"{a} {b}" for a, b in zip(first, last, strict=True)]
    out = []
    for i, name in enumerate(names):
        roll = Dice("person", i)
        values = {kind.id: kind.draw(roll) for kind in PERSON_KINDS}
        feat = f"the {roll.pick(ADJECTIVES)} {roll.pick(NOUNS)} of {roll.pick(TOWNS)}"
        near = tuple(n for j, n in enumerate(names) if j != i and j % len(ROLES) == i % len(ROLES))
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
