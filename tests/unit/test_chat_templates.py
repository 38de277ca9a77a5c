"""Templates that build without end are stopped soon; all others write what transformers writes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from turnwise.cli import main
from turnwise.models.chat_rendering import render_chat

TURNS = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
GROWTH = "{% set ns = namespace(s=START) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s WRITTEN }}"
"""Doubled sixty times."""


def grow(start: str, step: str, written: str = "") -> str:
    return GROWTH.replace("START", start).replace("STEP", step).replace("WRITTEN", written)


ENDLESS = [
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ ['a'] * 10**10 }}",
    "{{ (2**60) ** (2**60) }}",
    *(f"{{{{ 'a'.{name}(10**10) }}}}" for name in ("center", "ljust", "rjust", "zfill", "expandtabs")),
    "{{ 'a'|center(10**10) }}",
    "{{ 'a'|center(10000000000) }}",
    "{{ 'a'|indent(10**10, true) }}",
    "{{ 'a b'|wordwrap(1, wrapstring='b' * 10**9) }}",
    "{{ ['a']|batch(10**10, 'b')|list }}",
    "{{ messages|tojson(indent=10**10) }}",
    "{{ lipsum(n=10**9) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=10**10) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}",
    "{{ ('b' * 10**5).join(('a' * 10**5)|list) }}",
    "{{ range(10**5)|map('string')|join('b' * 10**5) }}",
    "{% set s = 'a' * 10**7 %}{{ [" + "s[1:], " * 500 + "1] }}",
    grow("'a'", "ns.s ~ ns.s"),
    grow("'a'", "ns.s + ns.s"),
    grow("['a']", "ns.s + ns.s", "|length"),
    grow("['a']", "[ns.s, ns.s]"),
    grow("['a']", "[ns.s, ns.s]", "|tojson"),
    grow("{'a': 1}", "{'a': ns.s, 'b': ns.s}", "|string"),
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
    "{% set l = range(10**5)|list %}{% for i in l %}{{ 'x' in l }}{% endfor %}",
    "{% for i in range(10**5) %}" + "constant" * 1000 + "{% endfor %}",
    "{% set x %}{% for i in range(10**5) %}" + "constant" * 1000 + "{% endfor %}{% endset %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}",
    "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
    "{% if true %}" * 30_000 + "{% endif %}" * 30_000,
    "a" * 2_000_000,
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.parametrize("template", ENDLESS, ids=range(len(ENDLESS)))
def test_a_template_without_end_is_stopped(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    before = peak_mb()
    with pytest.raises((TemplateError, RecursionError, OverflowError)):
        render_chat(tokenizer, TURNS, chat_template=template)
    assert peak_mb() - before < 700


ORDINARY = [
    "{% for m in messages %}{{ m.role }}: {{ m['content'][0:2] ~ '!' ~ 1 ~ none }}{{ loop.index }}{% endfor %}",
    "{% for m in messages %}{{ loop.length }}{{ loop.previtem is defined }}{% if loop.last %}E{% endif %}{% endfor %}",
    "{{ messages|length * 2 }}{{ 'a' * 3 }}{{ '%5d|%s' % (3, 'x') }}{{ '{:>4}{a}'.format('x', a=1) }}",
    "{{ 2**10 }}{{ 7 % 4 }}{{ [1, [2]] + [3] }}",
    "{{ messages|map(attribute='role')|join(', ') }}{{ messages|selectattr('role', 'equalto', 'user')|list|tojson }}",
    "{% macro m(x, n) %}{{ x }}{% if n %}{{ m(x, n - 1) }}{% endif %}{% endmacro %}{{ m('a', 3) }}{{ nothing }}",
    "{% set found = messages|selectattr('role', 'equalto', 'nobody') %}{% if found %}yes{% endif %}",
    "{% for k, v in messages[0].items() %}{{ k|upper }}={{ v.split(' ')|last|trim }}{% else %}none{% endfor %}",
    "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}{{ messages[::-1][0].content }}{{ dict(a=1)|dictsort }}",
]


@pytest.mark.parametrize("template", ORDINARY)
def test_an_ordinary_template_writes_what_it_writes_without_limits(
    tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    unbounded = chat_template_utils._cached_compile_jinja_template(template)
    assert render_chat(tokenizer, TURNS, chat_template=template) == unbounded.render(messages=TURNS)


def test_a_template_file_without_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "endless.jinja"
    file.write_text("{{ 'a' * 10**10 }}")
    assert main(["doctor", "frozenlake", f"context.template={file}"]) == 2
    # The cell of a table is wrapped.
    assert "makes more than" in " ".join(capsys.readouterr().out.replace("│", " ").split())
