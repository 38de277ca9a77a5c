"""Random conversations (append, edit, branch, interleave, compact): how many train on tokens nobody saw.

The expected number is none. The conversations and the comparison are those of `tests/unit/serve/test_conversations.py`.
"""

from __future__ import annotations

from tests.unit.serve.test_conversations import differing


def run(num_conversations: int = 10_000, num_calls: int = 12) -> dict[str, object]:
    found = [why for seed in range(num_conversations) if (why := differing(seed, num_calls))]
    return {
        "benchmark": "conversations",
        "conversations": num_conversations,
        "calls": num_calls,
        "different": len(found),
        "first": found[:3],
    }
