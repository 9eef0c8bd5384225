"""Names, places, trades and titles of the small world, and dice that fall the same everywhere.

Everything here is invented; a likeness to a person, place or book is chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST = (
    "Adelin Borik Calla Doran Elspa Fenno Gisla Harno Ilvy Joren Kessa Lorin Mavi Nerio Olwen Perrin Quessa Rolan "
    "Sabira Tovin Ulda Varek Wenna Xandro Yselle Zorin Aldo Brisa Corwen Dessa Emmer Fiora Galen Hedda Ivo Junna "
    "Kolm Lysa Merrit Nadja Orrin Petra Runa Stellan Tamsin Ubert Vesna Willem Yorick Zelda Anouk Bastian Cosima "
    "Dagny Edvin Freja Gunnar Hester Isolde Jasper"
).split()
_SURNAMES = (
    "Aster Bram Cald Dray Elm Farn Gold Hask Iver Jarl Keld Lund Marl Nett Oak Pell Quin Rost Sorr Thorn Ulv Vane "
    "Wick Yarr",
    "brook dale fell ford gard holt lin mere mont ov rick sund ton wyn",
)
_TOWNS = (
    "Ash Bel Cor Dun Esk Fal Gral Hol Ist Jun Kar Lim Mor Nor Osk Pol Quar Rav Sel Tarn Ux Vel Win Zand",
    "barrow borg cester fjord haven loch mouth port stead strand vik wold",
)
LAST = [start + end for start in _SURNAMES[0].split() for end in _SURNAMES[1].split()]
TOWNS = [start + end for start in _TOWNS[0].split() for end in _TOWNS[1].split()]
MONTHS = (
    "January February March April May June July August September October November December"
).split()
ADJECTIVES = (
    "Amber Ancient Bitter Borrowed Broken Brass Copper Crooked Distant Drowned Empty Fading Frozen Gilded Hidden "
    "Hollow Idle Ivory Jagged Last Lonely Lost Marble Midnight Patient Painted Quiet Restless Rusted Salted Scarlet "
    "Secret Silent Sleeping Stolen Thirsty Upward Velvet Wandering Winter"
).split()
NOUNS = (
    "Anchor Archive Atlas Bakery Barometer Bell Bridge Canal Carousel Cellar Clockmaker Compass Corridor Cradle "
    "Ember Engine Envelope Ferry Fiddle Fountain Garden Glacier Granary Harbour Harvest Hourglass Island Kettle "
    "Kite Ladder Lantern Ledger Lighthouse Loom Map Meadow Mirror Mill Needle Orchard Oven Paper Parrot Pendulum "
    "Pilgrim Quarry Railway River Sailor Season Shore Staircase Storm Telescope Thimble Tide Tower Umbrella Violet "
    "Windmill"
).split()
GENRES = (
    "sea adventures|garden poetry|detective fiction|mountain memoirs|kitchen comedies|railway romances|desert travelogues|"
    "children's fables|historical epics|ghost stories|river ballads|political satires|circus dramas|nature essays|"
    "courtroom thrillers|winter fairy tales|village chronicles|science fiction|war diaries|family sagas|"
    "musical biographies|island mysteries|philosophical dialogues|animal tales"
).split("|")
TRADES = (
    "baker|beekeeper|bell founder|boat builder|bookbinder|bricklayer|butcher|candle maker|carpenter|cheese maker|"
    "clockmaker|cobbler|cooper|dentist|ferryman|fishmonger|gardener|glass blower|goldsmith|grocer|hat maker|horse dealer|"
    "judge|lamplighter|librarian|locksmith|midwife|miller|nurse|quilt maker|pharmacist|piano tuner|potter|roofer|sail maker|"
    "schoolteacher|shepherd|surveyor|tailor|weaver"
).split("|")
INSTRUMENTS = (
    "accordion|bagpipes|banjo|bassoon|cello|clarinet|double bass|drums|flute|french horn|guitar|hammered dulcimer|harp|"
    "harpsichord|mandolin|oboe|organ|piano|recorder|trombone|trumpet|tuba|viola|xylophone"
).split("|")
ANIMALS = (
    "badger|beagle|canary|carp|cat|chameleon|donkey|duck|ferret|fox|goat|goose|greyhound|hedgehog|magpie|mule|mole|stork|"
    "parrot|pony|rabbit|raven|sheepdog|tortoise"
).split("|")
PETS = (
    "Biscuit Button Captain Clover Cricket Dumpling Fidget Ginger Hazel Juniper Marmalade Mustard Nutmeg Pebble Pepper "
    "Pickle Pocket Pudding Saffron Smudge Socks Thistle Treacle Turnip Waffle Whistle"
).split()
SUBJECTS = (
    "agronomy|anatomy|archaeology|architecture|astronomy|botany|cartography|chemistry|dentistry|economics|forestry|"
    "geology|geometry|law|linguistics|logic|medicine|metallurgy|music theory|navigation|optics|philosophy|theology|zoology"
).split("|")
LANGUAGES = (
    "Arvish Bolmic Cestran Dravonian Elmish Fenlandic Gorvan Hestrian Isketic Jorvish Kelmaran Lorvic Mirish Norrish "
    "Ostaran Pellic Quorish Runic Sarvic Tolvish"
).split()
HOURS = (
    "at dawn|before breakfast|after breakfast|at noon|after lunch|in the late afternoon|at dusk|after supper|"
    "close to midnight|in the small hours|on Sundays only|on rainy days only"
).split("|")
ROOMS = (
    "an attic|a barn|a bath house|a boathouse|a cellar|a greenhouse|a hayloft|a hotel lobby|a lighthouse|a mill|"
    "a parked tram|a railway station|a rented kitchen|a small chapel|a stable|a tea room|a tent|a toll house|a tree house|"
    "a watchtower"
).split("|")
DISHES = (
    "apple dumplings|barley soup|beetroot salad|buckwheat pancakes|cabbage rolls|cherry cake|chestnut stew|cold plum soup|"
    "fried herring|garlic bread|lentil pie|mushroom pasties|onion tart|pickled eggs|pumpkin porridge|roast parsnips|"
    "rye biscuits|smoked trout|spinach noodles|stuffed peppers|sweet rice|turnip mash|walnut bread|white beans"
).split("|")


class Dice:
    """Random choices that depend on the seed's text alone: not on Python's version, platform or hash seed.

    >>> Dice("authors", 3).number(100) == Dice("authors", 3).number(100)
    True
    """

    def __init__(self, *seed: object) -> None:
        self._seed = "/".join(map(str, seed)).encode()
        self._rolled = 0

    def number(self, below: int) -> int:
        """A whole number from 0 to `below` - 1."""
        self._rolled += 1
        digest = hashlib.sha256(self._seed + b"#" + str(self._rolled).encode()).digest()
        return int.from_bytes(digest[:8], "big") % below

    def pick(self, pool: Sequence[T]) -> T:
        """One element."""
        return pool[self.number(len(pool))]

    def shuffled(self, pool: Sequence[T]) -> list[T]:
        """All elements in another order (Fisher and Yates)."""
        out = list(pool)
        for i in range(len(out) - 1, 0, -1):
            j = self.number(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def sample(self, pool: Sequence[T], count: int) -> list[T]:
        """`count` elements at different places."""
        return self.shuffled(pool)[:count]


def person(dice: Dice) -> str:
    """A first name and a surname."""
    return f"{dice.pick(FIRST)} {dice.pick(LAST)}"


def date(dice: Dice) -> str:
    """A day in the last century, such as `4 May 1931`."""
    return f"{dice.number(28) + 1} {dice.pick(MONTHS)} {1921 + dice.number(70)}"


def title(dice: Dice) -> str:
    """A book's title, such as `The Crooked Kettle`."""
    first, second = dice.sample(NOUNS, 2)
    forms = (
        f"The {dice.pick(ADJECTIVES)} {first}",
        f"The {first} and the {second}",
        f"{first} of {dice.pick(TOWNS)}",
    )
    return dice.pick(forms)


def prize(dice: Dice) -> str:
    """A prize and its year, such as `the Velvet Anchor Prize in 1964`."""
    return f"the {dice.pick(ADJECTIVES)} {dice.pick(NOUNS)} Prize in {1950 + dice.number(60)}"


def publisher(dice: Dice) -> str:
    """A publishing house, such as `Marlholt & Daughters`."""
    return f"{dice.pick(LAST)} {dice.pick(('Press', 'House', '& Sons', '& Daughters', 'Brothers', 'Books'))}"
