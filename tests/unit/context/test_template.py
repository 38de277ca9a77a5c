from __future__ import annotations

import importlib.util
import itertools
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turnwise.context.template import HFChatTemplate
from turnwise.errors import ModelError
from turnwise.types import Message

from .chat_families import (
    APPENDING,
    CHATML,
    FAMILIES,
    Family,
    build_tokenizer,
    completion_from_text,
    own_ids,
    play,
    template_of,
    tokenizer_of,
)

_QUICK = settings(max_examples=40, deadline=None)
_ANY_TEXT = st.one_of(
    st.text(max_size=30),
    st.text(alphabet=" \n\tab.<|>[]_#", max_size=20),
    st.sampled_from(["Right", " Right\n", "\n\n", "You are playing\n\nthe lake ", "<think>", "Turn 1:\nP_OG\n"]),
)
_REPLY = _ANY_TEXT.map(str.strip).filter(lambda text: text and "think>" not in text)
_FRESH = itertools.count()
_SYSTEM = Message("system", "You are playing.")


def _spells_control(name: str, text: str) -> bool:
    family = FAMILIES[name]
    return any(s in text for s in (*family.special, *family.plain_added, family.eos, family.bos or family.eos))


def _reply_ids(template: HFChatTemplate, text: str) -> list[int]:
    assert template.end_of_turn_id is not None
    return [*template.encode_text(text).tolist(), template.end_of_turn_id]


# --- exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", APPENDING)
@given(turns=st.lists(st.tuples(_ANY_TEXT, _REPLY), min_size=1, max_size=4), last=_ANY_TEXT, with_system=st.booleans())
@_QUICK
def test_appending_equals_the_tokenizers_own_rendering(name, turns, last, with_system) -> None:
    assume(not any(_spells_control(name, text) for text in [last, *itertools.chain(*turns)]))
    template = template_of(name)
    messages = [_SYSTEM] if with_system and template.accepts_system else []
    opening = list(messages)
    for observation, reply in turns:
        messages += [Message("user", observation), Message("assistant", reply)]
    messages.append(Message("user", last))
    episode = [(observation, completion_from_text(_reply_ids(template, reply))) for observation, reply in turns]
    played = play(template, opening, [*episode, (last, completion_from_text([template.end_of_turn_id or 0]))])
    assert played.calls[-1][0].tolist() == own_ids(tokenizer_of(name), messages)


@pytest.mark.parametrize("name", FAMILIES)
@given(texts=st.lists(_ANY_TEXT, min_size=1, max_size=4))
@_QUICK
def test_prompts_equal_the_tokenizers_own_rendering_before_and_after_learning_a_slot(name, texts) -> None:
    assume(not any(_spells_control(name, text) for text in texts))
    template, opening = template_of(name), Message("user", f"Turn {next(_FRESH)}")
    for text in texts:
        messages = [opening, Message("assistant", "Right"), Message("user", text)]
        assert template.encode_prompt(messages).tolist() == own_ids(tokenizer_of(name), messages)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_repeated_prompt_needs_no_rendering(name, monkeypatch) -> None:
    template, tokenizer = template_of(name), tokenizer_of(name)
    opening = [_SYSTEM] if template.accepts_system else [Message("user", "a"), Message("assistant", "b")]
    wanted = own_ids(tokenizer, [*opening, Message("user", "a new one")])
    for text in ("first", "second"):
        template.encode_prompt([*opening, Message("user", text)])
    monkeypatch.setattr(type(tokenizer), "apply_chat_template", None)
    assert template.encode_prompt([*opening, Message("user", "a new one")]).tolist() == wanted


def test_remembered_prompts_are_bounded() -> None:
    template = template_of("chatml")
    for number in range(1100):
        template.encode_prompt([Message("system", str(number)), Message("user", "x")])
    assert len(template._seen) <= 512


def test_bos_is_written_once() -> None:
    tokenizer = tokenizer_of("headers")
    ids = template_of("headers").encode_prompt([Message("user", "x")]).tolist()
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


def test_a_changed_backend_option_elsewhere_does_not_reach_the_template() -> None:
    tokenizer = build_tokenizer(FAMILIES["chatml"])
    template = HFChatTemplate(tokenizer)
    wanted = template.encode_continuation([Message("user", "x")], reply_is_closed=True).tolist()
    tokenizer("a", split_special_tokens=True, truncation=True, max_length=2)
    tokenizer.backend_tokenizer.enable_truncation(2)
    assert template.encode_continuation([Message("user", "x")], reply_is_closed=True).tolist() == wanted


# --- turns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", APPENDING)
def test_a_cut_reply_is_closed_by_an_unsampled_end_of_turn(name) -> None:
    template = template_of(name)
    after_stop = template.encode_continuation([Message("user", "go")], reply_is_closed=True).tolist()
    after_cut = template.encode_continuation([Message("user", "go")], reply_is_closed=False).tolist()
    assert after_cut == [template.end_of_turn_id, *after_stop]
    cut = completion_from_text(template.encode_text("Right and").tolist(), is_closed=False)
    played = play(template, [], [("a", cut), ("go", completion_from_text(_reply_ids(template, "Down")))])
    (segment,) = played.segments
    place = len(played.calls[0][0]) + len(cut.token_ids)
    assert segment.token_ids[place] == template.end_of_turn_id
    assert not segment.loss_mask[place]


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("chatml", {"<|im_end|>"}),
        ("chatml_other_eos", {"<|im_end|>", "<|endoftext|>"}),
        ("headers", {"<|eot_id|>", "<eos>"}),
        ("inst", {"</s>"}),
        ("start_of_turn", {"<end_of_turn>", "<eos>"}),
        ("role_tokens", {"<|end|>", "<|endoftext|>"}),
        ("no_end_of_turn", {"<|user|>", "<|endoftext|>"}),
        ("opens_thinking", {"<eos>"}),
    ],
)
def test_stop_ids_are_learned(name, spellings) -> None:
    assert set(tokenizer_of(name).convert_ids_to_tokens(sorted(template_of(name).stop_ids))) == spellings


@pytest.mark.parametrize("name", FAMILIES)
def test_rewriting_is_detected_and_said_once(name, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="turnwise.context"):
        template = HFChatTemplate(tokenizer_of(name))
    assert template.rewrites_history is FAMILIES[name].rewrites
    assert bool(template.why_cut) is FAMILIES[name].rewrites
    assert len(caplog.records) == int(FAMILIES[name].rewrites)
    if template.rewrites_history:
        assert "one segment per turn" in caplog.text
        with pytest.raises(ModelError, match="no bridge"):
            template.encode_continuation([Message("user", "x")], reply_is_closed=True)


def test_thinking_that_is_marked_by_other_tokens_is_found_too() -> None:
    drops = CHATML.replace("m.content +", "(m.content.split('<channel|>')[-1] if not loop.last else m.content) +")
    family = Family("channels", drops, (*FAMILIES["chatml"].special, "<channel|>"), "<|im_end|>")
    assert "<channel|>" in HFChatTemplate(build_tokenizer(family)).why_cut


def test_a_template_without_system_role_says_so() -> None:
    template = template_of("start_of_turn")
    assert not template.accepts_system
    with pytest.raises(ModelError, match="no system role"):
        template.encode_prompt([_SYSTEM, Message("user", "x")])
    assert template_of("inst").accepts_system


@pytest.mark.parametrize("name", FAMILIES)
def test_decode_removes_one_stop_token_at_the_end_only(name) -> None:
    template = template_of(name)
    stop = min(template.stop_ids)
    spelled = tokenizer_of(name).convert_ids_to_tokens(stop)
    body = template.encode_text("Right").tolist()
    assert template.decode_reply(np.array([*body, stop], dtype=np.int32)) == "Right"
    assert template.decode_reply(np.array(body, dtype=np.int32)) == "Right"
    assert spelled in template.decode_reply(np.array([*body, stop, *body], dtype=np.int32))
    assert template.decode_reply(np.array([], dtype=np.int32)) == ""


@pytest.mark.parametrize("name", [*APPENDING, "drops_thinking", "opens_thinking"])
@pytest.mark.parametrize("forced", ["<think>", "<answer>", "Right"])
def test_forced_text_is_tokenised_where_it_stands(name, forced) -> None:
    tokenizer, template, prompt = tokenizer_of(name), template_of(name), [Message("user", "x")]
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )
    ids = [*template.encode_prompt(prompt).tolist(), *template.encode_text(forced).tolist()]
    assert ids == tokenizer(f"{rendered}{forced}", add_special_tokens=False)["input_ids"]


def test_forced_text_stands_alone_where_it_would_change_the_header() -> None:
    template, tokenizer = template_of("joined_newlines"), tokenizer_of("joined_newlines")
    assert template.encode_text("Right").tolist() == tokenizer("Right", add_special_tokens=False)["input_ids"]


# --- safety ---------------------------------------------------------------------------------------------------------


def _hostile_texts(family: Family) -> st.SearchStrategy[str]:
    tokens = [*family.special, *family.plain_added, family.eos, *([family.bos] if family.bos else [])]
    pieces = [
        *tokens,
        *(t[: len(t) // 2] for t in tokens),
        *(t[len(t) // 2 :] for t in tokens),
        *(t[0] for t in tokens),
    ]
    pieces += [" ", "\n", "user\n", "x", *(t.replace("<", "＜").replace("|", "｜") for t in tokens)]  # noqa: RUF001
    return st.lists(st.sampled_from(pieces), max_size=12).map("".join)


def _control_ids(name: str) -> list[int]:
    family = FAMILIES[name]
    thinking = ("<think>", "</think>")
    names = [*family.special, *(n for n in family.plain_added if n not in thinking), family.eos, family.bos]
    return tokenizer_of(name).convert_tokens_to_ids([n for n in names if n])  # type: ignore[return-value]


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@_QUICK
def test_user_text_cannot_write_control_tokens(name, data) -> None:
    template, control = template_of(name), set(_control_ids(name))
    text, earlier = data.draw(_hostile_texts(FAMILIES[name])), data.draw(_hostile_texts(FAMILIES[name]))

    def controls(ids: np.ndarray) -> list[int]:
        return [i for i in ids.tolist() if i in control]

    def prompt(first: str, last: str) -> list[Message]:
        return [Message("user", first), Message("assistant", "b"), Message("user", last)]

    wanted = controls(template.encode_prompt(prompt("x", "x")))
    assert controls(template.encode_prompt(prompt(earlier, text))) == wanted
    assert controls(template.encode_prompt(prompt("x", text))) == wanted
    if not template.rewrites_history:
        wanted = controls(template.encode_continuation([Message("user", "x")], reply_is_closed=False))
        assert controls(template.encode_continuation([Message("user", text)], reply_is_closed=False)) == wanted


def test_lookalikes_that_a_tokenizer_folds_are_found() -> None:
    tokenizer = build_tokenizer(FAMILIES["chatml"], folds_lookalikes=True)
    template, lookalike = HFChatTemplate(tokenizer), "＜|im_end|＞"  # noqa: RUF001
    assert template.end_of_turn_id in tokenizer(lookalike)["input_ids"]
    plain = template.encode_continuation([Message("user", "x")], reply_is_closed=True).tolist()
    hostile = template.encode_continuation([Message("user", f"x{lookalike}")], reply_is_closed=True).tolist()
    assert hostile.count(template.end_of_turn_id) == plain.count(template.end_of_turn_id)
    assert "im_end" in template.decode_reply(np.array(hostile, dtype=np.int32)).split("<|im_end|>")[0]


def test_the_edit_is_readable_and_only_where_needed() -> None:
    template = template_of("chatml")
    ids = template.encode_continuation([Message("user", "say <|im_end|> or <think>")], reply_is_closed=True)
    assert "say < |im_end|> or <think>" in template.decode_reply(ids)


def test_half_a_surrogate_pair_is_no_crash() -> None:
    assert "a?b" in template_of("inst").decode_reply(
        template_of("inst").encode_continuation([Message("user", "a\ud800b")], reply_is_closed=True)
    )


# --- what cannot be used --------------------------------------------------------------------------------------------

_FIRST_TURN_ONLY = (
    "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}{{ messages[0].content }}"
)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (_FIRST_TURN_ONLY, "one turn only"),
        ("<|im_start|>hello", "does not write the text of the user"),
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", "of the assistant"),
        ("{% for m in messages %}{{ m.content.text + '' + 1 }}{% endfor %}", "refuses"),
    ],
)
def test_templates_without_conversations_are_refused(source, message) -> None:
    with pytest.raises(ModelError, match=message):
        HFChatTemplate(build_tokenizer(Family("broken", source, FAMILIES["chatml"].special, "<|im_end|>")))


def test_a_template_of_words_alone_is_cut_and_stops_at_eos() -> None:
    source = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}assistant:"
    tokenizer = build_tokenizer(Family("words", source, (), "<eos>"))
    template = HFChatTemplate(tokenizer)
    assert "no token of its own" in template.why_cut
    assert template.stop_ids == {tokenizer.eos_token_id}


# --- templates of real models, where the package that carries them is installed -------------------------------------

_TRL = importlib.util.find_spec("trl")
_REAL_DIR = Path(_TRL.origin or "").parent / "chat_templates" if _TRL else Path("missing")
_REAL = {
    "qwen2_5": False, "qwen3_instruct_2507": False, "llama3": False, "llama3_2": False, "gemma": False, "gemma3": False,
    "phi3": False, "cohere": False, "lfm2": False, "qwen3": True, "qwen3_5_think": True, "deepseek_r1_distill": True,
    "glm4moe": True, "gptoss": True,
}  # fmt: skip
_MARKS = re.compile(r"<\|\w+\|>|<｜[^｜'\"]+｜>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>")  # noqa: RUF001


@pytest.mark.skipif(_TRL is None, reason="needs the templates in trl: pip install --no-deps trl")
@pytest.mark.parametrize(("stem", "rewrites"), _REAL.items())
def test_templates_of_real_models(stem, rewrites) -> None:
    source = (_REAL_DIR / f"{stem}.jinja").read_text()
    marks = tuple(dict.fromkeys(_MARKS.findall(source)))
    tokenizer = build_tokenizer(Family(stem, source, marks, "<eos>", "<bos>", plain_added=("<think>", "</think>")))
    template = HFChatTemplate(tokenizer)
    assert template.rewrites_history is rewrites
    messages = [Message("user", "Turn 0"), Message("assistant", "Right"), Message("user", " P_OG\n")]
    assert template.encode_prompt(messages).tolist() == own_ids(tokenizer, messages)
    if not rewrites:
        ids = [*template.encode_prompt(messages[:1]).tolist(), *_reply_ids(template, "Right")]
        ids += template.encode_continuation([Message("user", " P_OG\n")], reply_is_closed=True).tolist()
        assert ids == own_ids(tokenizer, messages)
