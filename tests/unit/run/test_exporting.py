"""An exported model is an ordinary folder: it loads in plain transformers, and its card says what the run knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.errors import ConfigError, RunError
from turnwise.run.api import Run, train
from turnwise.run.export_model import export_model

from ...small_run import SMALL_LAKE, without_plots


class FakeHub:
    def __init__(self, problem: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self._problem = problem

    def create_repo(self, repo_id: str, *, exist_ok: bool, private: bool) -> None:
        if self._problem:
            raise OSError(self._problem)
        self.calls.append(("create", (repo_id, exist_ok, private)))

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        names = sorted(file.name for file in Path(folder_path).iterdir())
        self.calls.append(("upload", (repo_id, names, commit_message)))


def test_the_folder_is_an_ordinary_model_with_a_card(finished: Run, tmp_path: Path) -> None:
    folder = export_model(finished.path, tmp_path / "exported")
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert {"chat_template.jinja", "generation_config.json", "README.md"} <= names
    ours, exported = (AutoModelForCausalLM.from_pretrained(path) for path in (finished.policy, folder))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), exported.parameters(), strict=True))
    assert exported.lm_head.weight is exported.model.embed_tokens.weight
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert exported.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert exported.generation_config.max_new_tokens == finished.settings.context.max_response_tokens


def test_the_card_has_the_facts_of_the_run(finished: Run, tmp_path: Path) -> None:
    card = (export_model(finished.path, tmp_path / "exported") / "README.md").read_text()
    assert "| data | built in |" in card
    assert "| licence | trained from nothing: yours to choose |" in card
    summary = finished.summary
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| recipe | frozenlake |" in card
    assert "| environment | frozen_lake |" in card
    assert summary.success_after is not None
    assert summary.success_after_interval is not None
    low, high = summary.success_after_interval
    assert f"| success | {summary.success_after:.2f} ({low:.2f} to {high:.2f}) |" in card
    assert "| held-out episodes | 5 |" in card


def test_an_earlier_step_can_be_chosen_and_is_told_with_its_own_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    words = [*SMALL_LAKE, "report.checkpoint_every=1", "eval.every=0", "model.lora.type=lora"]
    run = train("frozenlake", words, run_dir=tmp_path / "run")
    first = export_model(run.path, tmp_path / "first", step=1)
    last = export_model(run.path, tmp_path / "last")
    assert "| step | 1 |\n| success | not evaluated at this step |" in (first / "README.md").read_text()
    assert "low-rank adapters, merged" in (last / "README.md").read_text()
    assert "lora" not in " ".join(AutoModelForCausalLM.from_pretrained(last).state_dict())
    with pytest.raises(ConfigError, match=r"--step: 7 given; .* these steps: 1, 2"):
        export_model(run.path, tmp_path / "other", step=7)


def test_the_exported_template_is_the_one_that_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    own = tmp_path / "own.jinja"
    own.write_text(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% if loud %}{{ ' loud' }}{% endif %}"
        "{% if m.role == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    words = [*SMALL_LAKE, f"context.template={own}", "context.template_kwargs.loud=true"]
    run = train("frozenlake", words, run_dir=tmp_path / "run")
    assert run.settings.context.template == str(own)
    # What a run needs later is in the run.
    own.unlink()
    tokenizer = AutoTokenizer.from_pretrained(export_model(run.path, tmp_path / "exported"))
    said = tokenizer.apply_chat_template([{"role": "user", "content": "go"}], tokenize=False)
    assert said == "<|user|>go loud"


def test_nothing_is_overwritten(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        export_model(finished.path, tmp_path / "taken")
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["mine"]
    with pytest.raises(ConfigError, match="is a file"):
        export_model(finished.path, tmp_path / "taken" / "mine")
    (tmp_path / "empty").mkdir()
    assert (export_model(finished.path, tmp_path / "empty") / "config.json").is_file()


def test_it_is_uploaded_whole_into_a_private_place(finished: Run, tmp_path: Path) -> None:
    hub = FakeHub()
    folder = export_model(finished.path, tmp_path / "exported", push="owner/lake", hub=hub)
    (made, place), (sent, (name, names, message)) = hub.calls
    assert (made, place) == ("create", ("owner/lake", True, True))
    assert (sent, name, message) == ("upload", "owner/lake", "frozenlake, step 2")
    assert names == sorted(file.name for file in folder.iterdir())


def test_a_failed_upload_leaves_the_folder_and_says_what_to_do(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"could not be uploaded as 'owner/lake': no way\. .*hf upload owner/lake"):
        export_model(finished.path, tmp_path / "exported", push="owner/lake", hub=FakeHub("no way"))
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["model_type"] == "llama"


def test_a_name_that_the_hub_would_refuse_is_told_before_anything_is_written(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--push: 'a b' given"):
        export_model(finished.path, tmp_path / "exported", push="a b", hub=FakeHub())
    assert not (tmp_path / "exported").exists()
