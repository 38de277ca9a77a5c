"""Which chat template a tokenizer speaks with: its own or that of a file, with chosen values for its variables.

In come a tokenizer and the settings of `context`; the tokenizer goes out with the template that is used, in place. The
values become a part of the template's own text, so that whoever renders with this tokenizer gets them: the rollouts,
the endpoint, a checkpoint, and other programs that load what was exported. What a template does is `template.py`'s
business.
"""

from __future__ import annotations

import re
from pathlib import Path

from jinja2.exceptions import SecurityError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from turnwise.chat_templates import render_chat
from turnwise.config.schema import ContextSettings
from turnwise.errors import ConfigError


def choose_template(tokenizer: PreTrainedTokenizerBase, context: ContextSettings, *, model: str) -> None:
    """Give the tokenizer the template of `context.template` and the values of `context.template_kwargs`."""
    if context.template is not None:
        tokenizer.chat_template = _read(tokenizer, context.template)
    if not context.template_kwargs:
        return
    own = tokenizer.chat_template or ""
    sources = own if isinstance(own, dict) else {"": own}
    source = context.template or model
    for name in context.template_kwargs:
        if not any(re.search(rf"\b{name}\b", text) for text in sources.values()):
            raise ConfigError(
                f"context.template_kwargs: '{name}' given; the chat template of '{source}' has no such variable, so it "
                "would change nothing. Leave it out, or correct its name."
            )
    chosen = {key: _with_values(text, context.template_kwargs) for key, text in sources.items()}
    tokenizer.chat_template = chosen if isinstance(own, dict) else chosen[""]


def _read(tokenizer: PreTrainedTokenizerBase, path: str) -> str:
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(
            f"context.template: '{path}' cannot be read (looked in {file.absolute()}): {why.lower()}. Give a file with "
            "a Jinja chat template, or leave it out for the model's own."
        ) from error
    try:
        render_chat(tokenizer, [{"role": "user", "content": "?"}], chat_template=text)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"context.template: '{path}' is no valid Jinja template: line {error.lineno}: {error.message}"
        ) from error
    except SecurityError as error:
        raise ConfigError(f"context.template: '{path}' cannot be used: {error}.") from error
    except Exception:  # noqa: BLE001 - a template is a program, and raises what it likes
        # What it makes of a conversation is tried elsewhere; here it must only be a template.
        pass
    return text


def _with_values(template: str, values: dict[str, bool | int | float | str]) -> str:
    """The template with other defaults; a caller that names a value still has it."""
    lines = (f"{{% set {name} = {name} if {name} is defined else {value!r} %}}\n" for name, value in values.items())
    return "".join(lines) + template
