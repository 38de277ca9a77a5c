"""A template of one's own, and values for the variables of a template."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import load_settings
from turnwise.config.schema import ContextSettings
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.errors import ConfigError, ModelError
from turnwise.types import Message

from .chat_families import FAMILIES, build_tokenizer

_TRL = importlib.util.find_spec("trl")
THINKS = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""

MARKS_TURNS = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- if m.role == 'user' and not enable_thinking %}{{ ' /quick' }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def model_with(folder: Path, template: str | None) -> str:
    tokenizer = build_tokenizer(FAMILIES["drops_thinking"])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def context(**given: Any) -> ContextSettings:
    return ContextSettings.model_validate(given)


def prompt(template: HFChatTemplate, folder: str) -> str:
    tokenizer = load_tokenizer(folder)
    return str(tokenizer.decode(template.encode_prompt([Message("user", "go")]).tolist()))


def test_values_reach_prompts_and_bridges(tmp_path: Path) -> None:
    model = model_with(tmp_path / "m", MARKS_TURNS)
    for value, mark in ((False, " /quick"), (True, "")):
        tokenizer = load_tokenizer(model, context(template_kwargs={"enable_thinking": value}))
        template = HFChatTemplate(tokenizer)
        assert not template.why_cut
        assert f"go{mark}<|im_end|>" in prompt(template, model)
        bridge = template.encode_continuation([Message("user", "go")], reply_is_closed=True)
        assert f"go{mark}<|im_end|>" in str(tokenizer.decode(bridge.tolist()))


@pytest.mark.skipif(_TRL is None, reason="needs the templates in trl: pip install --no-deps trl")
def test_values_reach_a_real_template_as_the_tokenizer_would_pass_them(tmp_path: Path) -> None:
    assert _TRL is not None
    file = Path(_TRL.origin or "").parent / "chat_templates" / "qwen3.jinja"
    model = model_with(tmp_path / "m", None)
    said = [{"role": "user", "content": "go"}]
    texts = []
    for value in (False, True):
        chosen = context(template=str(file), template_kwargs={"enable_thinking": value})
        tokenizer = load_tokenizer(model, chosen)
        texts.append(
            tokenizer.apply_chat_template(
                said, chat_template=file.read_text(), tokenize=False, add_generation_prompt=True, enable_thinking=value
            )
        )
        ids = HFChatTemplate(tokenizer).encode_prompt([Message("user", "go")])
        assert tokenizer.decode(ids.tolist()) == texts[-1]
    assert texts[0] != texts[1]


def test_what_is_saved_speaks_as_chosen_and_still_takes_other_values(tmp_path: Path) -> None:
    model = model_with(tmp_path / "m", None)
    (tmp_path / "own.jinja").write_text(THINKS)
    chosen = context(template=str(tmp_path / "own.jinja"), template_kwargs={"enable_thinking": False})
    load_tokenizer(model, chosen).save_pretrained(tmp_path / "saved")
    saved = load_tokenizer(str(tmp_path / "saved"))
    assert "</think>" in prompt(HFChatTemplate(saved), str(tmp_path / "saved"))
    said = [{"role": "user", "content": "go"}]
    other = saved.apply_chat_template(said, tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert "</think>" not in other


def test_a_file_makes_a_model_without_a_template_usable(tmp_path: Path) -> None:
    model = model_with(tmp_path / "m", None)
    with pytest.raises(ModelError, match=r"no chat template.*context\.template=FILE"):
        load_tokenizer(model, context())
    (tmp_path / "own.jinja").write_text(THINKS)
    assert load_tokenizer(model, context(template=str(tmp_path / "own.jinja"))).chat_template == THINKS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"template": "{tmp}/none.jinja"}, r"context\.template: '.*none\.jinja' cannot be read .*no such file"),
        ({"template": "{tmp}"}, r"context\.template: .* cannot be read .*directory"),
        ({"template": "{tmp}/broken.jinja"}, r"context\.template: '.*broken\.jinja' is no valid Jinja .*line 2"),
        (
            {"template_kwargs": {"enable_thinkin": False}},
            r"context\.template_kwargs: 'enable_thinkin' given; .*no such",
        ),
    ],
)
def test_what_cannot_be_used_is_told_with_its_path(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    (tmp_path / "broken.jinja").write_text("ok\n{% for m in %}")
    filled = {k: v.replace("{tmp}", str(tmp_path)) if isinstance(v, str) else v for k, v in given.items()}
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(model_with(tmp_path / "m", THINKS), context(**filled))


@pytest.mark.parametrize("name", ["messages", "no name"])
def test_variables_of_the_conversation_are_not_taken(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is"):
        load_settings("frozenlake", {"context.template_kwargs": {name: 1}})


def test_values_given_on_the_command_line_are_in_the_settings() -> None:
    settings = load_settings("frozenlake", ["context.template_kwargs.enable_thinking=false"])
    assert settings.context.template_kwargs == {"enable_thinking": False}
