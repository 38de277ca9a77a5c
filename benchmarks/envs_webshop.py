"""The web shop on one core: steps, resets and searches per second over the built-in catalogue of 1,000 products."""

from __future__ import annotations

import time
from collections.abc import Callable

from turnwise.envs.webshop import WebShop
from turnwise.envs.webshop.search import SearchIndex

NUM_EPISODES = 1000


def run(num_episodes: int = NUM_EPISODES) -> dict[str, object]:
    env = WebShop()
    texts = [product.search_text for product in env.catalogue.products]
    names = [product.asin for product in env.catalogue.products]
    build_s = _cpu_seconds(lambda: SearchIndex(names, texts))
    index = env.catalogue.index
    queries = [" ".join([*goal.attributes, goal.query]) for goal in env.catalogue.goals[:num_episodes]]
    search_s = _cpu_seconds(lambda: [index.search(query, 50) for query in queries])
    reset_s = _cpu_seconds(lambda: [env.reset(seed) for seed in range(num_episodes)])
    episodes = [_oracle_actions(env, seed) for seed in range(num_episodes)]
    play_s = _cpu_seconds(lambda: [_replay(env, seed, actions) for seed, actions in enumerate(episodes)])
    num_steps = sum(map(len, episodes))
    return {
        "benchmark": "envs_webshop",
        "products": len(texts),
        "episodes": num_episodes,
        "steps_per_s": num_steps / (play_s - reset_s),
        "levels_per_s": num_episodes / reset_s,
        "searches_per_s": len(queries) / search_s,
        "index_build_s": build_s,
    }


def _oracle_actions(env: WebShop, seed: int) -> list[str]:
    env.reset(seed)
    actions, done = [], False
    while not done:
        actions.append(env.oracle())
        done = env.step(actions[-1])[2]
    return actions


def _replay(env: WebShop, seed: int, actions: list[str]) -> None:
    env.reset(seed)
    for action in actions:
        env.step(action)


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process alone, so that other work on the machine does not count."""
    started = time.process_time()
    work()
    return time.process_time() - started
