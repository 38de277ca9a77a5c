"""The local engine against `transformers.generate`, on five-turn episodes with the default model.

Both sides continue the same conversations and sample the same number of tokens. `generate` gets the whole conversation
again each turn, left-padded, as most trainers call it; the engine keeps its key-value rows. Repeats are interleaved and
medians compared, because timings on a shared machine drift.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np
import torch
from transformers import PreTrainedModel

from turnwise.config.load import load_settings
from turnwise.context.manager import ContextManager
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.engine.local import LocalEngine
from turnwise.loop.policies import resolve_model
from turnwise.models.load import load_model
from turnwise.rollout.env_specs import main_env
from turnwise.rollout_io import EnvOutput, HistoryEntry
from turnwise.types import GenerateRequest, IntArray, Message, Sampling

NUM_TURNS = 5
NUM_REPEATS = 7
REPLY_TOKENS = (4, 8, 16)
"""The default recipe's own budget, and longer replies."""


def run(num_episodes: int = 64) -> dict[str, object]:
    """Tokens per second of both, as medians, and their ratio, for replies of several lengths."""
    settings = load_settings(
        "frozenlake", {"context.window": "full", "context.instructions": "full", "context.max_tokens": 1024}
    )
    path = resolve_model(settings)
    tokenizer = load_tokenizer(path)
    template = HFChatTemplate(tokenizer)
    first = _first_prompts(settings, template, num_episodes)
    bridge = template.encode_continuation([Message("user", "Pa1 Gd4 Ob2 Oc3")], reply_is_closed=False)
    ours = LocalEngine(load_model(path), stop_ids=frozenset())
    theirs = load_model(path)
    return {
        "benchmark": "engine_multi_turn",
        "episodes": num_episodes,
        "turns": NUM_TURNS,
        "first_prompt_tokens": len(first[0]),
        "bridge_tokens": len(bridge),
        "by_reply_tokens": {num_new: _compare(ours, theirs, first, bridge, num_new) for num_new in REPLY_TOKENS},
    }


def _compare(
    ours: LocalEngine, theirs: PreTrainedModel, first: list[IntArray], bridge: IntArray, num_new: int
) -> dict[str, float]:
    engine_s: list[float] = []
    generate_s: list[float] = []
    # The first round warms both sides up and is not counted.
    for _ in range(NUM_REPEATS + 1):
        engine_s.append(_time(lambda: asyncio.run(_play_engine(ours, first, bridge, num_new))))
        generate_s.append(_time(lambda: _play_generate(theirs, first, bridge, num_new)))
    ratios = [g / e for g, e in zip(generate_s[1:], engine_s[1:], strict=True)]
    num_tokens = len(first) * NUM_TURNS * num_new
    return {
        "engine_tokens_per_s": num_tokens / statistics.median(engine_s[1:]),
        "generate_tokens_per_s": num_tokens / statistics.median(generate_s[1:]),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
    }


def _first_prompts(settings: object, template: HFChatTemplate, num_episodes: int) -> list[IntArray]:
    env = main_env(settings).make("eval")  # type: ignore[arg-type]
    context = ContextManager(template, main_env(settings).context)  # type: ignore[arg-type]
    outputs = [
        EnvOutput(
            env_id=seed,
            group_id=seed,
            tag="frozen_lake",
            history=(HistoryEntry(state=env.reset(seed=seed, split="eval"), actions_left=10),),
            penalty=0.0,
        )
        for seed in range(num_episodes)
    ]
    return [lm_input.prompt_ids for lm_input in context.get_lm_inputs(outputs)]


async def _play_engine(engine: LocalEngine, first: list[IntArray], bridge: IntArray, num_new: int) -> None:
    sampling = Sampling(max_new_tokens=num_new)

    async def play(number: int) -> None:
        ids = first[number]
        for turn in range(NUM_TURNS):
            request = GenerateRequest(prompt_ids=ids, sampling=sampling, seed=turn, cache_key=str(number))
            completion = await engine.generate(request)
            ids = np.concatenate([ids, completion.token_ids, bridge])
        engine.release(str(number))

    await asyncio.gather(*(play(number) for number in range(len(first))))


@torch.inference_mode()
def _play_generate(model: PreTrainedModel, first: list[IntArray], bridge: IntArray, num_new: int) -> None:
    rows = list(first)
    for _ in range(NUM_TURNS):
        width = max(len(ids) for ids in rows)
        input_ids = torch.tensor(np.stack([np.pad(ids, (width - len(ids), 0)) for ids in rows]), dtype=torch.long)
        mask = torch.tensor(np.stack([np.arange(width) >= width - len(ids) for ids in rows])).long()
        sampled = model.generate(  # type: ignore[operator]
            input_ids=input_ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            min_new_tokens=num_new,
            max_new_tokens=num_new,
        )[:, width:].numpy()
        rows = [np.concatenate([ids, new, bridge]) for ids, new in zip(rows, sampled, strict=True)]


def _time(work: object) -> float:
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - started
