"""Everything that a run would refuse, found before anything of it is made: one function decides for all who ask.

In: settings. Out: every reason why they cannot run, each with what it is about. Nothing is written, no weight is
loaded, and one reason does not hide another. Whether the model plays well is no reason: `turnwise doctor` tries that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from turnwise.checks.settings import find_contradictions
from turnwise.checks.stages import Finding, fine, problem
from turnwise.config.load import env_params
from turnwise.config.schema import (
    EndpointWarmStart,
    LessonSettings,
    NoIsolation,
    NoWarmStart,
    OracleWarmStart,
    ProcessIsolation,
    TurnwiseSettings,
)
from turnwise.config.schema_learn import FilePtx, ModelJudgeSettings, OraclePtx
from turnwise.config.trust import DistrustError, refuse_stranger
from turnwise.engine.openai import Endpoint
from turnwise.envs.check import check_env
from turnwise.envs.isolation import check_elsewhere
from turnwise.envs.safe_calls import close_env, reset_env
from turnwise.errors import ConfigError, EnvError, TurnwiseError
from turnwise.experience.codec import read_experiences
from turnwise.hooks import open_callbacks
from turnwise.infra.threads import call_within
from turnwise.report.trackers import require_trackers
from turnwise.rollout.env_specs import (
    World,
    count_held_out,
    find_workflow,
    main_world,
    read_pairs,
    require_oracle,
    settle_length,
    worlds_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason against a run."""

    about: str
    """`settings`, `workflow`, `data`, `model`, `reward model`, or the config path of an environment."""
    message: str


def refuse_what_cannot_run(settings: TurnwiseSettings, *, is_resumed: bool = False) -> None:
    """Raise a ConfigError that lists every reason why these settings cannot run.

    A run that is resumed from a checkpoint has its model there, and its warm start behind it.
    """
    if is_resumed:
        settings = settings.model_copy(update={"warm_start": NoWarmStart()})
    found = find_refusals(settings)
    reasons = [refusal.message for refusal in found if not (is_resumed and refusal.about == "model")]
    if reasons:
        raise ConfigError("\n  ".join(["this cannot run:", *reasons]) if reasons[1:] else reasons[0])


def find_refusals(settings: TurnwiseSettings) -> list[Refusal]:
    """Every reason, in the order of the pipeline."""
    unsettled: list[Refusal] = []
    try:
        settings = settle_length(settings)
    except DistrustError:
        pass
    except TurnwiseError as error:
        unsettled = [Refusal(about="settings", message=str(error))]
    found = [Refusal(about="settings", message=problem) for problem in find_contradictions(settings)]
    # A workflow that cannot be imported is told there already.
    if not any(refusal.message.startswith("rollout.workflow:") for refusal in found):
        found += _caught("workflow", lambda: find_workflow(settings))
    found += [refusal for path, world in worlds_by_path(settings) for refusal in _world_refusals(settings, path, world)]
    broken = {refusal.about for refusal in found}
    if "env" not in broken:
        found += unsettled
        found += _caught("data", lambda: _check_oracle(settings))
    found += _caught("data", lambda: _check_endpoint(settings))
    if all(about not in broken for about, _ in worlds_by_path(settings)):
        found += _caught("settings", lambda: count_held_out(settings))
    found += _caught("data", lambda: _check_rows(settings))
    found += _caught("data", lambda: _check_offline(settings))
    found += _caught("settings", lambda: require_trackers(settings.report.trackers))
    found += _caught("settings", lambda: open_callbacks(settings.report.callbacks))
    found += _caught("model", lambda: _check_model(settings))
    found += _caught("reward model", lambda: _check_reward_model(settings))
    if not found:
        # What is broken elsewhere cannot be begun.
        found += _caught("settings", lambda: _check_first_prompt(settings))
    return found


def _caught(about: str, check: Callable[[], object]) -> list[Refusal]:
    try:
        check()
    except DistrustError:
        # Nothing is said against what was not looked at.
        return []
    except TurnwiseError as error:
        return [Refusal(about=about, message=str(error))]
    return []


# --- environments ----------------------------------------------------------------------------------------------------


def worlds_by_path(settings: TurnwiseSettings) -> list[tuple[str, World]]:
    """Every environment with its config path."""
    main, *mixed = worlds_of(settings)
    return [("env", main), *((f"mix.{world.tag}.env", world) for world in mixed)]


def _world_refusals(settings: TurnwiseSettings, path: str, world: World) -> list[Refusal]:
    """An environment that cannot be made, or has no task where one is needed; each reason once."""
    reasons: dict[str, None] = {}
    for split, is_sure in _splits_played(settings, world).items():
        try:
            _try(world, split, is_sure=is_sure)
        except DistrustError:
            break
        except TurnwiseError as error:
            reasons[_at_path(str(error), path)] = None
    return [Refusal(about=path, message=reason) for reason in reasons]


def _splits_played(settings: TurnwiseSettings, world: World) -> dict[str, bool]:
    """The splits that a run of these settings plays; whether it ends where their first task fails."""
    mode, is_tiny = settings.run.mode, settings.model.path == "tiny"
    is_shown = isinstance(settings.warm_start, LessonSettings) or isinstance(settings.learn.ptx, OraclePtx)
    splits: dict[str, bool] = {}
    if mode in ("both", "explore") or is_tiny or is_shown:
        # The tokenizer of the built-in model is made from the texts of training tasks.
        splits["train"] = is_tiny
    if world == main_world(settings) and settings.eval.is_wanted and mode != "explore":
        splits["eval"] = True
    return splits


def _try(world: World, split: str, *, is_sure: bool) -> None:
    env, limit_s = world.make(split), world.timeout_s if world.is_guarded else None
    try:
        # What is made next, a relative run directory for one, must not lie where an environment has gone to.
        with chdir("."):
            call_within(limit_s, partial(reset_env, env, 0, split=split))
    except TimeoutError as error:
        raise EnvError(f"env.type: reset took longer than rollout.episode_timeout_s = {limit_s:g}.") from error
    except EnvError:
        # One task that fails is an episode that fails: data, not the end of a run.
        if is_sure:
            raise
    finally:
        close_env(env)


def _at_path(message: str, path: str) -> str:
    """Environments speak of their settings as `env.KEY`, wherever they stand."""
    if path == "env":
        return message
    return f"{path}{message.removeprefix('env')}" if message.startswith("env.") else f"{path}: {message}"


# --- data ------------------------------------------------------------------------------------------------------------


def _check_oracle(settings: TurnwiseSettings) -> None:
    asked = {
        "warm_start.type": isinstance(settings.warm_start, OracleWarmStart),
        "learn.ptx.type": isinstance(settings.learn.ptx, OraclePtx),
    }
    for asked_by in (path for path, is_asked in asked.items() if is_asked):
        require_oracle(settings, asked_by=asked_by)


def _check_endpoint(settings: TurnwiseSettings) -> None:
    if isinstance(settings.warm_start, EndpointWarmStart):
        # It is sent a key, so that an address of a stranger's must not be asked either.
        refuse_stranger(f"warm_start: {settings.warm_start.url}")
        Endpoint(settings.warm_start, where="warm_start").find_model()


def _check_rows(settings: TurnwiseSettings) -> None:
    if isinstance(ptx := settings.learn.ptx, FilePtx):
        read_pairs(ptx)


def _check_offline(settings: TurnwiseSettings) -> None:
    if settings.buffer.offline is not None:
        read_experiences(Path(settings.buffer.offline))


# --- models ----------------------------------------------------------------------------------------------------------


def _check_model(settings: TurnwiseSettings) -> None:
    model = settings.model
    if model.path == "tiny" and model.lora.type == "none" and model.gradient_checkpointing is not True:
        # It is made to fit, so there is nothing to look at, and no reason to load torch.
        return
    from turnwise.context.recorder import require_end_of_turn  # noqa: PLC0415
    from turnwise.loop.build import load_words  # noqa: PLC0415
    from turnwise.models.resolve import check_causal_model, check_held_as, find_here  # noqa: PLC0415
    from turnwise.models.tiny import tiny_config  # noqa: PLC0415

    if model.path == "tiny":
        check_held_as(tiny_config(model.tiny, vocab_size=model.tiny.vocab_size), model)
        return
    here = find_here(model.path)
    if here is None:
        # What it holds is known once it is fetched or converted.
        return
    # What a template cannot do is told when the run begins, once.
    with _silenced("turnwise.context"):
        words = load_words(settings, here)
    if isinstance(settings.warm_start, LessonSettings) or settings.learn.ptx.type != "none":
        require_end_of_turn(words.template)
    if config := check_causal_model(here):
        check_held_as(config, model)


def _check_first_prompt(settings: TurnwiseSettings) -> None:
    """The built-in model is made from what it will be told; one that is not here is known when it is fetched."""
    if settings.model.path == "tiny":
        return
    from turnwise.checks.model import check_first_prompt  # noqa: PLC0415
    from turnwise.loop.build import load_words  # noqa: PLC0415
    from turnwise.models.resolve import find_here  # noqa: PLC0415 - they load torch

    if here := find_here(settings.model.path):
        with _silenced("turnwise.context"):
            words = load_words(settings, here)
        check_first_prompt(settings, words)


def _check_reward_model(settings: TurnwiseSettings) -> None:
    judge = settings.reward.judge
    # Where no path is given, the rules of the settings say so.
    if isinstance(judge, ModelJudgeSettings) and judge.path not in (None, "", "tiny"):
        from turnwise.models.resolve import check_reward_model  # noqa: PLC0415 - it loads torch

        check_reward_model(str(judge.path))


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


_NUM_EPISODES = 3
"""Enough for every fault that is in all episodes; `turnwise check ENV` plays more."""


def examine_world(path: str, world: World) -> list[Finding]:
    """One line for an environment that keeps its contract, or one for each part that it breaks."""
    if isinstance(world.isolation, ProcessIsolation) and world.isolation.python is not None:
        data, params = "", env_params(world.env, "train")
        report = check_elsewhere(world.isolation.python, world.env.type, params, num_episodes=_NUM_EPISODES)
    else:
        # Processes of their own would take longer to start than to play.
        plain = replace(world, isolation=NoIsolation())
        env = plain.make("train")
        data, is_slow = getattr(env, "description", ""), env.is_slow
        close_env(env)
        report = check_env(lambda: plain.make("train"), num_episodes=1 if is_slow else _NUM_EPISODES)
    if report.ok:
        num_made = len(report.checks) - len(report.not_made)
        words = f"'{world.env.type}' keeps all {num_made} parts of its contract that it can be held to"
        return [fine(path, f"{words}; {data}" if data else words)]
    advice = f"See: turnwise check {world.env.type}"
    return [
        problem(path, f"'{world.env.type}' breaks its contract ({check.name}): {check.detail.rstrip('.')}. {advice}")
        for check in report.failures
    ]
