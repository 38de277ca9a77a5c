"""Dictionaries of the package textarena, built once in a process.

Games of words build theirs, and ask the network for a word list, whenever they are made, which is for every episode. In
comes nothing; out comes nothing: the package's own class remembers what it has built. It refuses to know any game.
"""

from __future__ import annotations

import sys
from typing import Any

_MODULE = "textarena.envs.utils.word_lists"


def remember_dictionaries() -> None:
    """Called when a game has been made: only those of words load the module."""
    dictionary: Any = getattr(sys.modules.get(_MODULE), "EnglishDictionary", None)
    if dictionary is None or hasattr(dictionary, "remembered"):
        return
    build = dictionary.__init__
    dictionary.remembered = {}

    def init(self: Any, *given: Any, **named: Any) -> None:
        key = repr((given, sorted(named.items())))
        if key not in dictionary.remembered:
            build(self, *given, **named)
            dictionary.remembered[key] = self.__dict__
        self.__dict__ = dict(dictionary.remembered[key])

    dictionary.__init__ = init
