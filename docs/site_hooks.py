"""What the site does with a page before it is shown: files of the repository are named where pages link to them.

Pages are read in the repository too, where such a link leads to the file; the site holds pages alone.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?:src|tests|examples|benchmarks|recipes)/[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(r"\1", markdown)
