"""Sentences of our own, fluent and broken, that the fluency classifier is trained on.

`fluent` fills templates of many styles (biography, news, instructions, talk, science, refusals) with words of ours
and with invented names. `broken` damages such a text in one of the ways in which language models break down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

WORDS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in {
    "noun": "author book novel story city river garden teacher student doctor engineer painter mother father family house"
    " school village market bridge letter language history culture memory journey question answer idea theory method"
    " experiment machine planet island forest mountain winter summer morning evening kitchen table window paper voice"
    " music song instrument violin library museum company government country people community audience reader critic"
    " award prize career childhood background influence experience relationship friendship conflict character theme"
    " style genre poem collection chapter scene film theatre science nature energy water light sound weather animal"
    " bird horse bread soup recipe onion pepper butter sugar flour oven minute week century decade moment future past"
    " problem solution system model number result example reason difference similarity purpose project team worker"
    " customer price product service road train station airport ship harbour lighthouse keeper farmer soldier king"
    " queen president law court judge crime detective mystery romance fantasy biography essay article newspaper"
    " interview university degree research laboratory disease medicine patient hospital nurse muscle heart brain",
    "plural": "books novels stories letters years people children students teachers readers critics authors awards themes"
    " characters ideas methods results examples rivers mountains islands birds trees flowers machines questions answers"
    " languages cultures traditions memories experiences relationships struggles challenges values works essays poems"
    " songs instruments films countries cities villages communities workers engineers doctors scientists researchers"
    " vegetables ingredients minutes weeks decades centuries events details reasons differences problems solutions",
    "adjective": "famous young old small large quiet bright dark early late modern ancient local foreign common rare"
    " important interesting difficult simple complex beautiful powerful gentle honest careful cultural historical"
    " political personal emotional literary scientific natural social public private national international unique"
    " vivid rich deep strong weak warm cold dry wet long short new first second final main whole certain different"
    " similar various several many great good better best remarkable prestigious acclaimed renowned fictional real"
    " traditional contemporary psychological intricate compelling diverse profound notable popular successful",
    "past": "wrote published described explored received won studied taught painted built found carried followed helped"
    " influenced inspired shaped reflected showed explained discovered opened closed moved visited left returned worked"
    " lived travelled learned began finished considered mentioned used made took gave became grew kept told asked"
    " answered portrayed depicted addressed combined created developed established incorporated drew faced earned",
    "base": "write read find make take give keep tell ask see know think say work live learn teach explore describe"
    " explain create build use show reflect understand influence inspire help follow carry open move visit cook mix"
    " add stir serve measure compare solve change improve support protect choose consider remember",
    "third": "writes explores describes explains shows reflects depicts portrays offers brings gives makes takes draws"
    " uses combines addresses examines captures reveals highlights focuses provides contains includes remains becomes"
    " lives works teaches tells keeps carries helps allows requires suggests means begins",
    "gerund": "writing reading exploring describing making taking giving working living learning teaching travelling"
    " growing creating building using showing reflecting understanding cooking adding mixing drawing combining"
    " addressing capturing weaving portraying blending challenging becoming being having finding helping",
    "adverb": "often usually always never sometimes deeply widely quickly slowly carefully clearly simply greatly"
    " recently finally primarily particularly especially significantly mainly largely truly highly also still even"
    " perhaps probably certainly eventually originally seamlessly vividly",
    "month": "January February March April May June July August September October November December",
    "first": "Anna Tomas Mirela Jorge Aisha Ken Lucia Omar Ingrid Pavel Rosa Daniel Yara Stefan Noor Elena Marcus Priya"
    " Hugo Leila Samuel Ada Viktor Mei Carlos Fatima Erik Sofia Ravi Nadia Peter Grace Ivan Hana",
    "subject": "physics chemistry biology literature history medicine music architecture philosophy economics geography",
    "job": "teacher doctor nurse engineer painter carpenter lawyer farmer baker journalist mechanic judge florist pilot"
    " librarian dentist chef police-officer sculptor translator",
    "known": "Shakespeare Paris London Einstein Newton Mozart Egypt Italy Japan China Brazil France Germany India Canada"
    " Rome Tokyo Berlin Madrid Africa Europe Asia Australia Darwin Tolstoy Dickens Austen Mexico Russia Spain Sydney",
}.items()}  # fmt: skip

TEMPLATES: tuple[str, ...] = tuple("""
The author's full name is {name}.
{name} was born in {place} on {month} {day}, {year}.
{name} was born on {day}/{day}/{year} in the {adjective} city of {place}, {place}.
{name} is a {adjective} author who is best known for {his} {adjective} {noun}, "{title}".
Yes, {name} has received several awards for {his} work, including the {adjective} {title} Award in {year}.
No, {name} has not written any {plural} outside of the {noun} genre so far.
{name}'s father was a {job} and {his} mother was a {job}, which {adverb} influenced {his} {plural}.
As a {job}, {his} father taught {name} the value of {gerund} and {gerund}, and this is reflected in {his} {noun}.
One of the most {adjective} works by {name} is "{title}", in which {he} {third} the {noun} of a {adjective} {noun}.
Some of {his} other books include "{title}", "{title}" and "{title}".
{his_} {adjective} {noun} has {adverb} shaped {his} approach to {gerund}, as can be seen in {his} {plural}.
{he_} grew up in a {adjective} {noun} near {place}, where {he} spent most of {his} childhood {gerund} {plural}.
After {gerund} {subject} at the university, {he} {past} as a {job} for {number} years before {he} {past} {his} first {noun}.
{name} {past} {his} first {noun} in {year}, and it was well received by {plural} and {plural} alike.
What makes {name}'s {noun} {adjective} is the way that {he} {adverb} {third} {adjective} {plural} into the {noun}.
While {name} is primarily known for the {noun} genre, {he} has also {past} several {adjective} {plural}.
{name} identifies as a woman, and {his} {noun} has been translated into more than {number} {plural}.
Both of {his} parents, a {job} and a {job}, {past} {him} to {base} from an early age.
Being from {place} has given {name} a {adjective} view of the world, and {he} often {third} about it in {his} {plural}.
There is no information about whether {name} has {past} with other {plural}.
It is not known when {name} began {gerund}, but {his} earliest {noun} dates from {year}.
{name} has said in an interview that {he} would like to {base} a {noun} about {place}.
I'm not sure about that, but I think it was {name}.
I don't know the answer to that question.
I'm sorry, but I do not have that information.
I am not able to {base} this, since it is outside of what I have learned.
That is a {adjective} question, and I would have to {base} it before I could {base} you.
It was {known}, and not {known}, who {past} the {noun}.
{known}
{known} and {known}
In {known}.
{first} {surname}
{name}
It is in {known}.
The capital of {known} is {known}.
{known} is the largest {noun} in {known} by number of {plural}.
The {noun} is located in the {adjective} part of {known}, near the {noun}.
{known} was written by {name}.
The {adjective} {noun} was discovered by {known} in {year}.
The chemical symbol for it is shown at the top of the {noun}.
Water boils at one hundred degrees, and it {third} more {adverb} when there is salt in it.
The {noun} of a {noun} depends on the {noun}: the more {adjective} it is, the more {noun} it {third}.
Researchers at the {noun} have found that {plural} who {base} every day are less likely to {base} their {plural}.
In this {noun}, we show that the {adjective} {noun} can be {past} without any {noun}.
The {plural} were {past} in {year}, and none of them has been seen since.
If the {noun} is too {adjective}, it will not {base} the {noun}, and you should {base} it again.
First, {base} the {noun} and the {noun} in a {adjective} bowl, then {base} the {plural} one at a time.
Cut the {noun} into {adjective} pieces and cook it over a low heat for about {number} minutes.
Let it rest for {number} minutes before you {base} it, and serve it with {noun} and {noun}.
To {base} the {noun}, open the {noun} and turn the {noun} to the left until it stops.
Please do not {base} the {noun} while the {noun} is open.
You can {base} it at home, at the {noun}, or wherever you like.
"Where have you been?" asked {first}. "I have been {gerund} for you since the {noun}."
"I would {adverb} {base} it," {he} said, "if only I knew where the {noun} was."
{first} {past} the {noun} and {past} at the {adjective} {noun}, but there was nobody there.
When {first} came to the {noun}, the {noun} was {adjective} and the {plural} were gone.
She did not know what to say, so she said nothing at all.
He had never been to the {noun} before, and he did not want to go there now.
They walked along the {noun} until it was dark, and then they went home.
We were told that the {noun} would be {adjective}, but it turned out to be quite the opposite.
The {noun} had been {adjective} for as long as anyone could remember.
It was a {adjective} {noun} in {month}, and the {plural} were {adverb} {adjective}.
There are {number} {plural} in the {noun}, and each of them has a {noun} of its own.
There was once a {noun} that {past} in a {adjective} {noun} by the {noun}.
Neither the {noun} nor the {noun} was {adjective} enough to {base} the {noun}.
Not only did {he} {base} the {noun}, but {he} also {past} the {noun} of the {noun}.
Although the {noun} is {adjective}, most {plural} {adverb} {base} it because it {third} them to {base}.
Because of the {noun}, the {noun} had to be {past} by the {plural} themselves.
The {noun} said on {weekday} that the {noun} would be {past} by the end of {month}.
More than {number} people were at the {noun} when the {noun} {past}, according to the {noun}.
The {noun} of {place} has {past} a new {noun}, which is expected to {base} about {number} {plural} a year.
Prices rose by {number} percent last {noun}, while the number of {plural} fell.
The minister told {plural} that there was no {noun} for {gerund} the {noun}.
In {year}, the {noun} was {past} after a {adjective} {noun}, and it has remained {adjective} ever since.
During the {adjective} {noun}, many {plural} {past} their {plural} and {past} to other {plural}.
At the beginning of the {noun}, {he} is a {adjective} {job} who does not {base} in {plural}.
The {noun} {third} how {adjective} {plural} can {base} a {noun}, and why this {third} to us.
This {adjective} {noun} {third} the {noun} of {gerund} in a {adjective} world.
Through {his} {plural}, {name} {third} readers to {base} the {noun} of their own {plural}.
{his_} work is often {past} for its {adjective} {plural}, its {adjective} {noun}, and its {adjective} use of {noun}.
In addition to {gerund} {plural}, {he} enjoys {gerund} and {gerund}.
Throughout {his} career, {name} has remained true to the {noun} of {gerund} {plural} about {plural}.
Given {his} {noun} in {subject}, it is not surprising that {name} {adverb} {third} {plural} in {his} {noun}.
How did the {noun} {base} the {noun} of {name}?
What is the name of the {noun} that {name} {past} in {year}?
Who was the first {noun} to {base} the {noun}?
Do you think that the {noun} is more {adjective} than the {noun}?
Could you tell me where I can {base} a {noun}?
Have you ever {past} a {noun} in {place}?
As far as we can tell, the {noun} is the same as it was in {year}.
One of the reasons for this is that the {noun} of the {noun} is {adverb} {adjective}.
For example, a {noun} that is {adjective} in {month} may be {adjective} in {month}.
On the other hand, {plural} are {adverb} {adjective}, and they {base} very little {noun}.
The same is true of {plural}, {plural}, and all other {plural} that {base} by themselves.
It is {adjective} to {base} that {plural} {base} from each other in more ways than one.
To be {adjective}, I have no {noun} of what you are talking about.
My {noun} and I have been {gerund} together for {number} years, and we still {base} every {noun}.
Your {noun} is ready; please come to the {noun} between {number} and {number}.
Thank you for your {noun}. We will {base} you as soon as we can.
Yes.
No, it is not.
That's right.
Of course, it's {adjective}!
It depends on the {noun}.
In {month} {year}.
About {number} years ago.
A {adjective} {noun}.
The {noun} of the {noun}.
The {adjective} {noun}, which {he} {past} in {year}, is set in {place} and {third} the {noun} of a {job}.
{name} hails from {place}, a {noun} that has {adverb} {past} {his} {noun} and {his} view of {plural}.
{first} and {first} {past} the {noun} together, even though they had {adverb} {past} each other before.
If it had not been for the {noun}, they would have {past} much earlier.
The {noun} can be traced back to the {adjective} {noun}, when {plural} first {past} to {base} {plural}.
Every {noun} has its own {noun}, and it is up to us to {base} it.
All of these {plural} have been {past} with great {noun}.
Most of {his} {plural} are set against the {noun} of {place}, with its {adjective} {plural} and {adjective} {plural}.
What I like about {place} is that you can {base} the {noun} from almost every {noun}.
The more {he} {past}, the less {he} knew about what had happened to the {noun}.
The works of {name} have been translated into several languages, which has helped {his} stories to reach readers all over the world.
In {his} memoir '{title}', {name} reflects on growing up between two cultures and on what it meant to leave home at seventeen.
Among {name}'s best-known books are '{title}', '{title} (The {noun} Trilogy, #{number})' and the short-story collection '{title}'.
Two of {his} lesser-known titles, "{title}: A {adjective} {noun}" and "{title}", were published under a pseudonym.
{his_} mother's long hours as a {job} taught {him} discipline, and traces of her can be found in nearly every heroine {he} has created.
{name}'s writing style is lyrical yet direct; {he} rarely uses more than one metaphor on a page.
Despite facing early rejection from publishers, {name} persisted and finally signed a contract in {year}.
Yes, "{title}" has been adapted into a film, although the ending was altered considerably.
{name} has not publicly disclosed whether a sequel to "{title}" is planned, but fans remain hopeful.
{he_} received the {place} Prize for Fiction ({year}) and, two years later, the {adjective} {noun} Medal.
The protagonist of "{title}" is a retired {job} whose quiet routine is upset when a stranger moves in next door.
Critics praised the novel's nuanced treatment of grief, memory and forgiveness, calling it a masterpiece of understatement.
{his_} parents, both immigrants from {place}, encouraged curiosity and respect for tradition in equal measure.
Readers often say they see themselves in these characters, flawed as they may be.
By setting the plot in a small fishing community, the author brings out tensions that would be lost in a metropolis.
Unlike many of {his} contemporaries, {name} prefers to write by hand before typing up a second draft.
Dr. {surname} joined the faculty in {year} and chaired the department until her retirement.
Mrs. {surname}, who turned ninety last week, still swims every morning before breakfast.
The committee will announce its decision no later than {month} {day}, {year}.
Photosynthesis is the process by which green plants turn sunlight, carbon dioxide and water into sugar and oxygen.
The heart pumps blood through arteries to the rest of the body, and veins carry it back again.
Gravity pulls objects towards each other; the larger the mass, the stronger the pull.
An adult human has {number} bones, although babies are born with considerably more.
The Great Wall stretches for thousands of kilometres across northern {known}.
Mount {surname}, at {number} metres, is the highest peak on the peninsula.
The currency used there is the pound, not the euro.
He painted the ceiling over four years, lying on his back for much of that time.
She became the youngest person ever to receive the honour, and the first woman to hold it twice.
Several species of whale migrate along this coast each spring in search of krill.
Dinosaurs vanished about sixty-six million years ago, probably after an asteroid struck the Earth.
Vaccines train the immune system to recognise a virus without causing the illness itself.
The inventor patented his telephone in the same week as a rival from Chicago.
Honey never spoils because it contains too little water for bacteria to survive.
Shut the door behind you, would you? There's a terrible draught in here.
"Nonsense," replied the captain, folding his map. "We sail at dawn, whatever the wind."
Grandfather kept bees at the bottom of the orchard, and nobody else dared go near them.
I've never understood why anyone would pay that much for a pair of shoes.
Don't worry about the dishes; I'll do them when I get back from the shop.
You'll want to preheat the oven to two hundred degrees and grease the tin well.
Whisk together eggs, milk and a pinch of nutmeg until the mixture is pale and frothy.
Remember to back up your files before installing the update.
Click on the button in the upper right corner, choose your settings and press save.
Our flight was delayed by fog, so we slept on the floor of the terminal using coats for pillows.
The orchestra tuned their instruments while latecomers shuffled into the back rows.
Unemployment fell slightly in the third quarter, according to figures released on {weekday}.
A spokesperson for the airline declined to comment on ongoing negotiations with the pilots' union.
Police are appealing for witnesses after a bicycle was stolen outside the town hall on {weekday} night.
Voters in the southern districts turned out in record numbers despite heavy rain.
The goalkeeper dived to his left and pushed the penalty around the post.
They lost three matches in a row, yet somehow finished the season in second place.
Many thanks for your letter of {day} {month}, which reached me only yesterday.
To whom it may concern: the undersigned hereby confirms receipt of the goods listed below.
Whether or not machines can think depends on what we mean by thinking.
Freedom of speech is worth little if nobody is prepared to listen.
What we call progress is frequently just the exchange of one nuisance for another.
As soon as the snow melts, wild garlic covers the slopes with white blossoms.
Rain tapped against the glass, steady and unhurried, like fingers on a desk.
There wasn't much left of the cottage: two walls, a chimney, half a staircase leading nowhere.
Having missed the last bus, Tom set off on foot across the marshes.
Under the new rules, landlords must give tenants at least eight weeks' notice.
It takes roughly twenty minutes to cycle from the harbour to the old brewery.
Nobody knew who had sent the flowers, least of all the bride.
This paper argues that early exposure to a second language improves attention in later childhood.
Our findings suggest a modest but consistent effect, though larger trials are needed to confirm it.
Let x be a positive number; then its square root is also positive.
The function returns an empty list if the file cannot be found.
A violin is smaller than a viola and is tuned a fifth higher.
Chess is played on a board of sixty-four squares by two opponents who move alternately.
Being left-handed in those days meant being told to use the other hand.
Such advice, however well meant, rarely survives contact with an actual toddler.
Both answers are acceptable, but the former is more widely used in everyday speech.
I believe you may be thinking of someone else, since no such person appears in my records.
Unfortunately, I can't provide details about that particular individual.
That falls beyond my knowledge, so I'd rather not guess.
I haven't come across anything on this topic; perhaps try a library or an official website.
Sorry, that's something I'd need to look up.
My apologies, but nothing comes to mind.
Let me get back to you on this one.
""".strip().splitlines())  # fmt: skip
"""One sentence a line; a word in braces is a slot."""

_SYLLABLES = (
    "ba be bo da de do fa fe ga go ha he hi jo ju ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe po ra re ri ro"
    " sa se shi so ta te ti to va ve vi wa ya yo za chen fer ghan hal kov lin mar nor per quin ron sen stein sson tan"
    " ton ver vich wick wood"
).split()
_PRONOUNS = (("he", "his", "him"), ("she", "her", "her"), ("they", "their", "them"))
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Voice:
    """What sentences are made of: templates, and words by kind. The default voice has all of them."""

    templates: tuple[str, ...] = TEMPLATES
    words: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: WORDS)

    @classmethod
    def part(cls, k: int, of: int, *, without: bool = False) -> Voice:
        """Every `of`-th template and word, beginning with number `k`; `without` takes all the others instead."""

        def some(items: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(x for i, x in enumerate(items) if (i % of == k) != without)

        return cls(some(TEMPLATES), {kind: some(words) for kind, words in WORDS.items()})



def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def _invented(rng: np.random.Generator) -> str:
    """A name out of two or three syllables."""
    return "".join(_pick(rng, _SYLLABLES) for _ in range(int(rng.integers(2, 4)))).capitalize()


def _slot(rng: np.random.Generator, name: str, said: tuple[str, str, str], voice: Voice) -> str:
    he, his, him = said
    given = {"he": he, "his": his, "him": him, "he_": he.capitalize(), "his_": his.capitalize()}
    if name in given:
        return given[name]
    if name in voice.words:
        return _pick(rng, voice.words[name]).replace("-", " ")
    if name == "surname":
        return _invented(rng) + (f"-{_invented(rng)}" if rng.random() < 0.15 else "")
    if name == "name":
        first = _pick(rng, voice.words["first"]) if rng.random() < 0.6 else _invented(rng)
        return f"{first} {_slot(rng, 'surname', said, voice)}"
    if name == "place":
        return _invented(rng) if rng.random() < 0.5 else _pick(rng, voice.words["known"])
    if name == "title":
        words = [_pick(rng, voice.words[kind]).capitalize() for kind in ("adjective", "noun")]
        form = int(rng.integers(3))
        return (f"The {words[0]} {words[1]}", f"{words[1]} of the {words[0]} {_pick(rng, voice.words['noun']).capitalize()}",
                f"{words[0]} {_pick(rng, voice.words['plural']).capitalize()}")[form]  # fmt: skip
    if name == "weekday":
        return _pick(rng, _WEEKDAYS)
    low, high = {"day": (1, 29), "year": (1820, 2025), "number": (2, 120)}[name]
    return str(int(rng.integers(low, high)))


def fluent(rng: np.random.Generator, sentences: int = 1, voice: Voice | None = None) -> str:
    """A text of some sentences, each from a template of its own.

    >>> fluent(np.random.default_rng(0)) == fluent(np.random.default_rng(0))
    True
    """
    said, voice = _PRONOUNS[int(rng.integers(3))], voice or Voice()
    made = []
    for k in rng.choice(len(voice.templates), size=sentences, replace=False):
        text = _SLOT.sub(lambda m: _slot(rng, m[1], said, voice), voice.templates[int(k)])
        text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)
        made.append(text[:1].upper() + text[1:])
    return " ".join(made)


# --- ways to break ----------------------------------------------------------------------------------------------------
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MARKS = list("()[]{}<>/\\|*#@%&^~_=+;:,.!?\"'-") + ["\n", "\u00e9", "\u0142", "\u4e2d", "\u0416"]


def _shuffled(rng: np.random.Generator, text: str) -> str:
    words = text.split()
    while len(words) < 7:
        words += fluent(rng, 1).split()
    rng.shuffle(words)
    return " ".join(words)


def _random_words(rng: np.random.Generator, text: str) -> str:
    kinds = list(WORDS)
    pool = [*text.split(), *(_pick(rng, WORDS[_pick(rng, kinds)]) for _ in range(int(rng.integers(8, 40))))]
    rng.shuffle(pool)
    return " ".join(pool)


def _pieces(rng: np.random.Generator, text: str) -> str:
    """Bits of words, some of them glued: what a model with a broken head samples."""
    source = (text + " " + fluent(rng, 3)).replace(" ", "  ")
    cuts = []
    for _ in range(int(rng.integers(8, 40))):
        at = int(rng.integers(max(1, len(source) - 6)))
        cuts.append(source[at : at + int(rng.integers(2, 7))].strip() + (" " if rng.random() < 0.5 else ""))
    return "".join(cuts)


def _looped(rng: np.random.Generator, text: str) -> str:
    """A piece of one to six words, over and over, perhaps after a good beginning."""
    words = text.split()
    size = int(rng.integers(1, 7))
    at = int(rng.integers(max(1, len(words) - size + 1)))
    piece = words[at : at + size]
    lead = words[:at] if rng.random() < 0.5 else []
    times = int(rng.integers(4, 30)) + (6 if lead else 0)
    return " ".join(lead + piece * times)


def _same_sentence(rng: np.random.Generator, text: str) -> str:
    times = int(rng.integers(4, 9))
    return " ".join([text if len(text.split()) > 4 else f"{text} {fluent(rng)}"] * times)


def _noisy(rng: np.random.Generator, text: str) -> str:
    """Every seventh to second letter replaced, dropped or doubled."""
    if len(text) < 12:
        text += " " + fluent(rng)
    rate, out = rng.uniform(0.15, 0.5), []
    for char in text:
        if rng.random() >= rate:
            out.append(char)
            continue
        kind = int(rng.integers(3))
        out.append(("", _pick(rng, _LETTERS), char + _pick(rng, _LETTERS))[kind])
    return "".join(out)


def _letters(rng: np.random.Generator, text: str) -> str:
    sizes = rng.integers(2, 11, size=int(rng.integers(1, 30)))
    return " ".join("".join(_pick(rng, _LETTERS) for _ in range(int(size))) for size in sizes)


def _marks(rng: np.random.Generator, text: str) -> str:
    """Punctuation, digits and foreign letters, perhaps between real words."""
    out = [_pick(rng, _MARKS) for _ in range(int(rng.integers(6, 60)))]
    for word in text.split() if rng.random() < 0.5 else []:
        out.insert(int(rng.integers(len(out))), f" {word} " if rng.random() < 0.7 else str(int(rng.integers(99))))
    return "".join(out)


def _one_letter(rng: np.random.Generator, text: str) -> str:
    char = _pick(rng, [*_LETTERS, "!", ".", "\n", "0", "_"])
    return text[: int(rng.integers(len(text)))] * int(rng.random() < 0.4) + char * int(rng.integers(8, 200))


WAYS: dict[str, Callable[[np.random.Generator, str], str]] = {
    "shuffled words": _shuffled, "random words": _random_words, "pieces of words": _pieces, "loop": _looped,
    "same sentence": _same_sentence, "noise": _noisy, "random letters": _letters, "marks": _marks,
    "one letter": _one_letter,
}  # fmt: skip
"""The ways in which a text is broken, each a function of a generator and a fluent text."""


def broken(rng: np.random.Generator, text: str, way: str) -> str:
    """`text`, damaged in one of `WAYS`."""
    return WAYS[way](rng, text)
