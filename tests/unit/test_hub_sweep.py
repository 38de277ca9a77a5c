"""The sweep over whole packages goes on after whatever happens in one world, and where it stood."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.hub_sweep import ask_process, noted, read_records, sweep
from benchmarks.hub_tables import explain, write_page

from turnwise.envs.check import SLOW_NOTE


def test_every_world_has_a_line_as_soon_as_it_is_known(tmp_path: Path) -> None:
    results = tmp_path / "results" / "sweep.jsonl"

    def ask(name: str) -> dict[str, object]:
        if name == "c":
            raise KeyboardInterrupt
        return {"verdict": "passes", "detail": name}

    with pytest.raises(KeyboardInterrupt):
        sweep("abc", results, ask)
    assert list(read_records(results)) == ["a", "b"]
    # A kill in the middle of a line, and a world that is asked again.
    results.open("a").write('{"name": "a", "verd')
    results.open("a").write('\n{"name": "b", "verdict": "fails", "detail": "now"}\n')
    assert {name: record["verdict"] for name, record in read_records(results).items()} == {"a": "passes", "b": "fails"}


@pytest.mark.slow
def test_a_world_that_hangs_or_dies_costs_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_worlds.py").write_text(
        "import os, time\n"
        "from turnwise.envs.bandit import Bandit\n"
        "class Hangs(Bandit):\n"
        "    def reset(self, seed=None, **rest): time.sleep(60)\n"
        "class Dies(Bandit):\n"
        "    def reset(self, seed=None, **rest): os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert ask_process("odd_worlds:Dies")["verdict"] == "died"
    assert ask_process("odd_worlds:Hangs", limit_s=8)["detail"] == "not done within 8 s"
    assert ask_process("odd_worlds:Missing")["verdict"] == "refused"
    passed = ask_process("bandit")
    assert (passed["verdict"], passed["with"]) == ("passes", "")


def test_the_page_names_what_does_not_pass_and_why() -> None:
    details = {
        "textarena:Chess-v0": ("refused", "SyntaxError: f-string: unmatched '['"),
        "textarena:Klondike-v0": ("refused", "SyntaxError: invalid syntax (env.py, line 119)"),
        "textarena:Wordle-v0": ("refused", "LookupError: Resource 'words' not found"),
        "textarena:Debate-v0": ("refused", "OPENROUTER_API_KEY is not set"),
        "textarena:BabyAiText-v0": ("refused", "env 'textarena:BabyAiText-v0': No module named 'gym'"),
        "textarena:Odd-v0": ("refused", "ModuleNotFoundError: No module named 'odd'"),
        "reasoning_gym:knight_swap": ("passes", f"2 steps/s, 0.1 resets/s: {SLOW_NOTE}"),
        "reasoning_gym:odd": ("fails", "oracle: succeeds\nin 1 of 2 | so"),
        "textarena:Nim-v0": ("passes", "9 steps/s"),
    }
    records = {name: {"verdict": verdict, "detail": detail} for name, (verdict, detail) in details.items()}
    assert "Python 3.12" in explain(records["textarena:Chess-v0"])
    assert "no version" in explain(records["textarena:Klondike-v0"])
    assert explain(records["textarena:BabyAiText-v0"]).startswith("needs BabyAI-Text,")
    assert explain(records["textarena:Odd-v0"]).startswith("needs the package odd,")
    assert explain(records["reasoning_gym:odd"]) == "oracle: succeeds in 1 of 2 \\| so"
    pytest.importorskip("textarena", reason="needs the extra textarena")
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    page = write_page({**records, "textarena:Tak-v0": noted({"verdict": "passes", "detail": ""}, "a lamp")})
    assert "| 2 | 1 | 0 | 1 |" in page
    assert "(`rollout.isolation.type=process`): `knight_swap` (2 steps/s, 0.1 resets/s).\n" in page
    assert "| 8 | 1 | 1 | 6 |" in page
    assert "| `Tak` | pass with a lamp |" in page
    assert "As they are: `Nim`." in page
