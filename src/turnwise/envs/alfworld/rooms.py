"""What generated households are made of: four kinds of rooms, their furniture, and the objects in them.

Tables only. Types, and what fits where, are a selection of the original's, so that what is learnt here is of use there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FRUIT = ("apple", "egg", "potato", "tomato")
_FOOD = (*_FRUIT, "bread", "lettuce")
_DISHES = ("bowl", "cup", "mug", "plate")
_PANS = ("pan", "pot")
_CUTLERY = ("butterknife", "fork", "knife", "spatula", "spoon")
_SHAKERS = ("peppershaker", "saltshaker")
_TOILETRIES = ("candle", "cloth", "soapbar", "soapbottle", "spraybottle", "toiletpaper")
_SMALL = ("cellphone", "creditcard", "keychain")
_DESKTOP = ("alarmclock", "book", "cd", "laptop", "pen", "pencil", *_SMALL)
_LEISURE = ("box", "laptop", "newspaper", "remotecontrol", "statue", "tissuebox", "vase", "watch", *_SMALL)

OPENABLE = frozenset(("cabinet", "drawer", "fridge", "microwave", "safe"))
LAMP = "desklamp"
LAMP_STANDS = frozenset(("desk", "dresser", "shelf", "sidetable"))
"""Where lamps stand. They cannot be carried, so nothing else takes them."""

PROPERTIES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys((*_DESKTOP, *_LEISURE, *_TOILETRIES, *_SHAKERS, "pillow"), frozenset(("pickupable",))),
    **dict.fromkeys((*_CUTLERY, "cloth", "soapbar", "dishsponge"), frozenset(("pickupable", "cleanable"))),
    **dict.fromkeys(_FRUIT, frozenset(("pickupable", "cleanable", "heatable", "coolable", "sliceable"))),
    **dict.fromkeys(_DISHES, frozenset(("pickupable", "cleanable", "heatable", "coolable", "isreceptacleobject"))),
    **dict.fromkeys((*_PANS, "bowl"), frozenset(("pickupable", "cleanable", "coolable", "isreceptacleobject"))),
    "bread": frozenset(("pickupable", "heatable", "coolable", "sliceable")),
    "lettuce": frozenset(("pickupable", "cleanable", "coolable", "sliceable")),
    "box": frozenset(("pickupable", "isreceptacleobject")),
    LAMP: frozenset(("toggleable",)),
}

CAN_CONTAIN: Mapping[str, frozenset[str]] = {
    "armchair": frozenset((*_SMALL, "box", "laptop", "newspaper", "pillow", "remotecontrol")),
    "bathtubbasin": frozenset(("cloth", "soapbar")),
    "bed": frozenset(("book", "cellphone", "laptop", "pillow")),
    "cabinet": frozenset((*_DISHES, *_PANS, *_SHAKERS, *_TOILETRIES, "dishsponge")),
    "coffeemachine": frozenset(("mug",)),
    "coffeetable": frozenset(_LEISURE),
    "countertop": frozenset((*_FOOD, *_DISHES, *_PANS, *_CUTLERY, *_SHAKERS, *_TOILETRIES, "dishsponge")),
    "desk": frozenset(_DESKTOP),
    "diningtable": frozenset((*_FOOD, *_DISHES, *_PANS, *_CUTLERY, *_SHAKERS, *_LEISURE)),
    "drawer": frozenset(
        (*_CUTLERY, *_SHAKERS, *_TOILETRIES, *_SMALL, "book", "cd", "dishsponge", "pen", "pencil", "remotecontrol")
    ),
    "dresser": frozenset(_DESKTOP),
    "fridge": frozenset((*_FOOD, *_DISHES, *_PANS)),
    "garbagecan": frozenset((*_FRUIT, "bread", "lettuce", "cd", "pen", "pencil", "newspaper", "soapbar", "soapbottle")),
    "microwave": frozenset((*_FRUIT, *_DISHES, "bread")),
    "safe": frozenset((*_SMALL, "cd", "watch")),
    "shelf": frozenset((*_SHAKERS, *_TOILETRIES, *_DESKTOP, "statue", "vase", "watch")) - {"laptop"},
    "sidetable": frozenset((*_DESKTOP, *_LEISURE)),
    "sinkbasin": frozenset((*_FRUIT, *_DISHES, *_PANS, *_CUTLERY, "lettuce", "dishsponge", "cloth", "soapbar")),
    "sofa": frozenset((*_SMALL, "box", "laptop", "newspaper", "pillow", "remotecontrol")),
    "stoveburner": frozenset(_PANS),
    "toilet": frozenset(_TOILETRIES),
}


@dataclass(frozen=True, slots=True)
class Room:
    """A kind of room: how many of each receptacle it has at most, and which objects are found there."""

    receptacles: Mapping[str, int]
    things: tuple[str, ...]


ROOMS: Mapping[str, Room] = {
    "kitchen": Room(
        {
            "cabinet": 5,
            "coffeemachine": 1,
            "countertop": 3,
            "diningtable": 1,
            "drawer": 4,
            "fridge": 1,
            "garbagecan": 1,
            "microwave": 1,
            "shelf": 2,
            "sinkbasin": 1,
            "stoveburner": 2,
        },
        (*_FOOD, *_DISHES, *_PANS, *_CUTLERY, *_SHAKERS, "dishsponge"),
    ),
    "bathroom": Room(
        {
            "bathtubbasin": 1,
            "cabinet": 5,
            "countertop": 2,
            "drawer": 4,
            "garbagecan": 1,
            "shelf": 4,
            "sinkbasin": 2,
            "toilet": 1,
        },
        _TOILETRIES,
    ),
    "bedroom": Room(
        {
            "armchair": 1,
            "bed": 2,
            "desk": 2,
            "drawer": 6,
            "dresser": 1,
            "garbagecan": 1,
            "safe": 1,
            "shelf": 4,
            "sidetable": 2,
        },
        (*_DESKTOP, "pillow"),
    ),
    "livingroom": Room(
        {
            "armchair": 2,
            "coffeetable": 2,
            "diningtable": 1,
            "drawer": 4,
            "garbagecan": 1,
            "safe": 1,
            "shelf": 4,
            "sidetable": 3,
            "sofa": 2,
        },
        (*_LEISURE, "pillow"),
    ),
}
MAX_RECEPTACLES = min(sum(room.receptacles.values()) for room in ROOMS.values())
