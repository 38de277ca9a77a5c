"""Environments of the package verifiers: `verifiers:NAME`, such as `verifiers:gsm8k-v1`.

In comes the name of an installed environment, that is of its taskset; out comes an environment class. Its tasks,
prompts, tools, users and rewards are the package's (`verifiers_stage.py` plays them). A reply is text or calls of tools
in JSON. It refuses environments with more than one agent. What the package needs does not fit beside this library, so
that it usually runs under a Python of its own: `rollout.isolation.python`.
"""

from __future__ import annotations

import itertools
import json
import re
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings
from turnwise.envs.adapters.external import (
    SPLITS,
    ExternalEnv,
    Option,
    define_env,
    is_valid_reply,
    make_info,
    require_env_id,
)
from turnwise.envs.adapters.verifiers_runner import LOADED_LATER, PACKAGES, Asked, Outcome, VerifiersStage
from turnwise.envs.base import check_split
from turnwise.errors import ConfigError, EnvError
from turnwise.infra.parsing import parse_json
from turnwise.infra.seeds import hash64

_CALL_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_PLAIN_REPLY = "Done."
_SAMPLES: Mapping[str, object] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
"""Arguments for random play, by their type in JSON; any other is a text."""
_HOW_TO_CALL = 'To call a tool, write only {"name": "NAME", "arguments": {...}}. Any other text is your reply.'


class VerifiersParams(Settings):
    """The settings of an environment of verifiers."""

    options: dict[str, Option] = Field(default={})
    """The settings of the taskset, as the package names them: `{difficulty: hard}`."""
    max_tasks: PositiveInt = 1000
    """Most tasks that are taken from the taskset, from its beginning; some have no end."""
    eval_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the tasks that is held out for evaluation, chosen by a hash of each prompt."""
    success_above: float = 0.0
    """An episode that ends with more reward than this counts as a success."""
    time_limit_s: PositiveFloat = 60.0
    """Longest wait for the package: for tools, for its servers, for rewards."""


class VerifiersEnv(ExternalEnv):
    """One taskset of verifiers with its rewards."""

    Params: ClassVar[type[Settings]] = VerifiersParams
    is_slow = True
    packages = (*PACKAGES, *LOADED_LATER)
    environment: ClassVar[str] = ""

    params: VerifiersParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._text = ""
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._num_seen = self._num_calls = 0
        with self._rngs.inside():
            self._stage = VerifiersStage(self.environment, self.params.options, self.label(), self.params.time_limit_s)
            # Its thread and its servers would outlive a world that is dropped and not closed.
            weakref.finalize(self, self._stage.close).atexit = False
            tasks = list(itertools.islice(iter(self._stage.tasks), self.params.max_tasks))
        self._tasks: dict[str, list[Any]] = dict(
            zip(SPLITS, _split(tasks, self.params.eval_share, self.label()), strict=True)
        )

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, luck = self._begin(seed, split, dynamics_seed)
        tasks = self._tasks[split]
        with self._rngs.inside():
            told = self._stage.begin(tasks[seed % len(tasks)])
        if isinstance(told, Outcome):
            raise EnvError(f"{self.label()}: the episode is over before the first call of the model.")
        self._rngs.seed(luck)
        self._num_seen = self._num_calls = 0
        self._text, self._tools, self._phase = self._read(told), told.tools, "playing"
        return self._text

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        message = self._as_message(action) if is_valid_reply(action) else None
        if message is None:
            return self._text, 0.0, False, make_info(success=False, is_valid=False, is_effective=False)
        with self._rngs.inside():
            told = self._stage.reply(message)
        if isinstance(told, Asked):
            self._text = self._read(told)
            return self._text, 0.0, False, make_info(success=False, is_valid=True, is_effective=True)
        self._phase = "over"
        info = make_info(success=told.reward > self.params.success_above, is_valid=True, is_effective=True)
        return "", told.reward, True, info | {"truncated": told.is_truncated, "metrics": dict(told.metrics)}

    def render(self) -> str:
        return self._text

    def num_tasks(self, split: str = "train") -> int:
        check_split(split, SPLITS, self.label())
        return len(self._tasks[split])

    @property
    def instructions(self) -> str:
        if not self._tools:
            return "Do what is asked."
        return "\n".join(["Do what is asked. Tools:", *map(_describe_tool, self._tools), _HOW_TO_CALL])

    def admissible_actions(self) -> Sequence[str] | None:
        """Where there are tools: a call of each, and a reply that calls none."""
        return [*map(_sample_call, self._tools), _PLAIN_REPLY] if self._tools else None

    def close(self) -> None:
        self._stage.close()

    def _read(self, asked: Asked) -> str:
        """What is new since the last reply; all of it where the conversation was written anew."""
        messages, seen = asked.messages, self._num_seen
        self._num_seen = len(messages) + 1
        is_longer = len(messages) >= seen and seen > 0
        return "\n\n".join(filter(None, map(_text_of, messages[seen:] if is_longer else messages)))

    def _as_message(self, action: str) -> Mapping[str, Any] | None:
        """A reply in the words of the chat API; None for a call that cannot be one."""
        calls = _read_calls(action) if self._tools else []
        if not calls:
            return {"role": "assistant", "content": action} if calls is not None else None
        names = {tool["function"]["name"] for tool in self._tools}
        if any(name not in names for name, _ in calls):
            return None
        return {"role": "assistant", "content": None, "tool_calls": [self._as_call(*call) for call in calls]}

    def _as_call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self._num_calls += 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"id": f"call_{self._num_calls}", "type": "function", "function": function}


def _split(tasks: Sequence[Any], eval_share: float, label: str) -> tuple[list[Any], list[Any]]:
    """Tasks for training and for evaluation; equal prompts are on one side."""
    places = [hash64(task.data.prompt_text or task.key) for task in tasks]
    if len(set(places)) < 2:
        raise ConfigError(f"{label} has {len(set(places))} different tasks; expected at least 2. See env.max_tasks.")
    ordered = sorted(set(places))
    border = ordered[max(1, min(round(eval_share * len(ordered)), len(ordered) - 1)) - 1]
    pairs = list(zip(tasks, places, strict=True))
    return [task for task, place in pairs if place > border], [task for task, place in pairs if place <= border]


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content.strip()
    return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content).strip()


def _describe_tool(tool: Mapping[str, Any]) -> str:
    function = tool["function"]
    fields = function.get("parameters", {}).get("properties", {})
    described = ", ".join(f"{name}: {about.get('type', 'any')}" for name, about in fields.items())
    return f"{function['name']}({described}): {' '.join(function.get('description', '').split())}"


def _sample_call(tool: Mapping[str, Any]) -> str:
    """A call with the arguments that a tool must have."""
    function = tool["function"]
    schema = function.get("parameters", {})
    arguments = {name: _sample(schema.get("properties", {}).get(name, {})) for name in schema.get("required", ())}
    return json.dumps({"name": function["name"], "arguments": arguments})


def _sample(schema: Mapping[str, Any]) -> object:
    return schema["enum"][0] if schema.get("enum") else _SAMPLES.get(str(schema.get("type")), "a")


def _read_calls(action: str) -> list[tuple[str, Mapping[str, Any]]] | None:
    """The calls that a reply consists of, none where it is plain text; None where it is neither."""
    blocks = _CALL_BLOCK.findall(action) or ([action] if action.strip().startswith("{") else [])
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for block in blocks:
        try:
            call = parse_json(block)
        except ValueError:
            return None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        calls.append((call["name"], arguments))
    return calls


@lru_cache
def adapt_verifiers(name: str) -> type[VerifiersEnv]:
    """The environment class of an installed environment; the package is imported when one is made."""
    require_env_id(name, "verifiers:gsm8k-v1")
    return define_env(VerifiersEnv, name=f"verifiers:{name}", environment=name)
