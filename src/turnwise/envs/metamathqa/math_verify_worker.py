"""A process that compares answers with math-verify, so that a comparison that never ends can be ended from outside.

In come lines of JSON, `[given, expected]`; out come `"ready"` and then a line for each, `true` or `false`. It is run
as a script and imports nothing of turnwise.
"""

from __future__ import annotations

import json
import logging
import sys

from math_verify import parse, verify


def is_equal(given: str, expected: str) -> bool:
    """Both sides in a box, or math-verify takes a part of the text for the whole."""
    gold, answer = (parse(f"\\boxed{{{text}}}") for text in (expected, given))
    return bool(verify(gold, answer))


def main() -> None:
    # Replies that cannot be read are common and nobody's concern.
    logging.disable()
    print(json.dumps("ready"), flush=True)  # noqa: T201 - standard output is the channel
    for line in sys.stdin:
        try:
            answer = is_equal(*json.loads(line))
        except Exception:  # noqa: BLE001 - the boundary: whatever a reply makes sympy raise, it is not the answer
            answer = False
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
