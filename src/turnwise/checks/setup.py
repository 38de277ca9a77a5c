"""Checks that make parts of a run: environments, workflow, data, model folder; and `validate_run` for every start.

Nothing is written, no weight is loaded, and one error does not hide another. Whether the model plays well is tried by
`turnwise doctor`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from turnwise.checks.stages import Subject, check, fail, ok, run_checks
from turnwise.config.load import env_params
from turnwise.config.schema import (
    EndpointWarmStart,
    ImitationSettings,
    NoIsolation,
    NoWarmStart,
    OracleWarmStart,
    ProcessIsolation,
    TurnwiseSettings,
)
from turnwise.config.schema_learn import FilePtx, ModelScorerSettings, OraclePtx
from turnwise.config.trust import UntrustedCodeError, require_trusted
from turnwise.engine.openai import Endpoint
from turnwise.envs.check import check_env
from turnwise.envs.isolation import check_in_process
from turnwise.envs.safe_calls import close_env, reset_env
from turnwise.errors import ConfigError, EnvError, Finding, TurnwiseError
from turnwise.experience.codec import read_experiences
from turnwise.hooks import open_callbacks
from turnwise.infra.threads import call_with_timeout
from turnwise.report.trackers import require_trackers
from turnwise.rollout.env_specs import World, count_eval_tasks, find_workflow, main_env, read_pairs, require_oracle


def validate_run(settings: TurnwiseSettings, *, is_resumed: bool = False) -> list[Finding]:
    """Raise a ConfigError that lists every reason why these settings cannot run; return warnings.

    A run that is resumed from a checkpoint has its model there, and its warm start behind it.
    """
    if is_resumed:
        settings = settings.model_copy(update={"warm_start": NoWarmStart()})
    with Subject(settings) as subject:
        found = check_setup(subject)
    errors = [each for each in found if each.level == "error" and not (is_resumed and each.where == "model")]
    if errors:
        lines = [error.text for error in errors]
        raise ConfigError("\n  ".join(["Invalid configuration:", *lines]) if lines[1:] else lines[0])
    return found


def find_errors(settings: TurnwiseSettings) -> list[Finding]:
    """Every reason why these settings cannot run, in the order of the pipeline."""
    with Subject(settings) as subject:
        return [finding for finding in check_setup(subject) if finding.level == "error"]


def check_setup(subject: Subject) -> list[Finding]:
    """Everything that is found without a model."""
    return [*run_checks(subject, "settings"), *run_checks(subject, "setup")]


# --- workflow and environments ---------------------------------------------------------------------------------------


@check("setup", where="workflow", needs=["rollout.workflow"])
def workflow_found(subject: Subject) -> None:
    find_workflow(subject.settings)


@check("setup")
def envs_start(subject: Subject) -> Iterator[Finding]:
    """Every environment can be made, and has a task where one is needed; each reason is reported once."""
    for path, world in subject.envs_by_path.items():
        reasons: dict[str, None] = {}
        for split, is_required in _splits_played(subject.settings, world).items():
            try:
                _reset(subject, path, split, is_required=is_required)
            except UntrustedCodeError:
                break
            except TurnwiseError as error:
                reasons[_at_path(str(error), path)] = None
        yield from (fail(path, reason, kind="environment") for reason in reasons)


def _splits_played(settings: TurnwiseSettings, world: World) -> dict[Literal["train", "eval"], bool]:
    """The splits that a run of these settings plays; whether it ends if their first task fails."""
    mode, is_tiny = settings.run.mode, settings.model.path == "tiny"
    is_shown = isinstance(settings.warm_start, ImitationSettings) or isinstance(settings.learn.ptx, OraclePtx)
    splits: dict[Literal["train", "eval"], bool] = {}
    if mode in ("both", "explore") or is_tiny or is_shown:
        # The tokenizer of the built-in model is made from the texts of training tasks.
        splits["train"] = is_tiny
    if world == main_env(settings) and settings.eval.is_wanted and mode != "explore":
        splits["eval"] = True
    return splits


def _reset(subject: Subject, path: str, split: Literal["train", "eval"], *, is_required: bool) -> None:
    world = subject.envs_by_path[path]
    env, limit_s = subject.make_env(path, split), world.timeout_s if world.runs_in_thread else None
    try:
        # A relative run directory, made later, must not follow an environment that changes the working directory.
        with chdir("."):
            call_with_timeout(limit_s, partial(reset_env, env, 0, split=split))
    except TimeoutError as error:
        raise EnvError(f"env.type: reset took longer than rollout.episode_timeout_s = {limit_s:g}.") from error
    except EnvError:
        # One task that fails is an episode that fails: data, not the end of a run.
        if is_required:
            raise


def _at_path(message: str, path: str) -> str:
    """Environments name their settings `env.KEY`, wherever they stand."""
    if path == "env":
        return message
    return f"{path}{message.removeprefix('env')}" if message.startswith("env.") else f"{path}: {message}"


# --- length and data -------------------------------------------------------------------------------------------------


@check("setup", needs=["env"])
def total_steps(subject: Subject) -> None:
    if subject.length_error is not None:
        raise subject.length_error


@check("setup", where="data", needs=["env"])
def oracle(subject: Subject) -> None:
    settings = subject.settings
    if isinstance(settings.warm_start, OracleWarmStart):
        require_oracle(settings, asked_by="warm_start.type")
    if isinstance(settings.learn.ptx, OraclePtx):
        require_oracle(settings, asked_by="learn.ptx.type")


@check("setup", where="data")
def endpoint(subject: Subject) -> None:
    warm_start = subject.settings.warm_start
    if isinstance(warm_start, EndpointWarmStart):
        # It is sent a key, so an address in an untrusted file must not be asked.
        require_trusted(f"warm_start: {warm_start.url}")
        Endpoint(warm_start, where="warm_start").find_model()


@check("setup")
def eval_tasks(subject: Subject) -> None:
    if not any(subject.has_errors(path) for path in subject.envs_by_path):
        count_eval_tasks(subject.settings)


@check("setup", where="data")
def ptx_file(subject: Subject) -> None:
    if isinstance(ptx := subject.settings.learn.ptx, FilePtx):
        read_pairs(ptx)


@check("setup", where="data")
def offline_file(subject: Subject) -> None:
    if subject.settings.buffer.offline is not None:
        read_experiences(Path(subject.settings.buffer.offline))


@check("setup")
def trackers(subject: Subject) -> None:
    require_trackers(subject.settings.report.trackers)


@check("setup")
def callbacks(subject: Subject) -> None:
    open_callbacks(subject.settings.report.callbacks)


# --- models ----------------------------------------------------------------------------------------------------------


@check("setup", where="model")
def model_folder(subject: Subject) -> None:
    settings, model = subject.settings, subject.settings.model
    if model.path == "tiny" and model.lora.type == "none" and model.gradient_checkpointing is not True:
        # It is made to fit, so there is nothing to check, and no reason to load torch.
        return
    from turnwise.context.recorder import require_end_of_turn  # noqa: PLC0415
    from turnwise.models.resolve import check_causal_model, check_model_options  # noqa: PLC0415
    from turnwise.models.tiny import tiny_config  # noqa: PLC0415

    if model.path == "tiny":
        check_model_options(tiny_config(model.tiny, vocab_size=model.tiny.vocab_size), model)
        return
    if subject.local_model is None:
        # What it holds is known once it is fetched or converted.
        return
    # What a template cannot do is logged when the run begins, once.
    with _silenced("turnwise.context"):
        template = subject.words.template
    if isinstance(settings.warm_start, ImitationSettings) or settings.learn.ptx.type != "none":
        require_end_of_turn(template)
    if config := check_causal_model(subject.local_model):
        check_model_options(config, model)


@check("setup", where="reward model")
def reward_model(subject: Subject) -> None:
    judge = subject.settings.reward.judge
    # A missing path is an error of the settings.
    if isinstance(judge, ModelScorerSettings) and judge.path not in (None, "", "tiny"):
        from turnwise.models.resolve import check_reward_model  # noqa: PLC0415 - it loads torch

        check_reward_model(str(judge.path))


@check("setup", needs=[""])
def first_prompt(subject: Subject) -> None:
    """The built-in model is made from its prompts; one that is not here is known when it is fetched."""
    if subject.settings.model.path == "tiny":
        return
    if subject.local_model is not None:
        from turnwise.checks.model import check_first_prompt  # noqa: PLC0415 - it loads torch

        check_first_prompt(subject.settings, subject.words)


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


# --- lines of the doctor ---------------------------------------------------------------------------------------------

_NUM_EPISODES = 3
"""Enough for every fault that is in all episodes; `turnwise check ENV` plays more."""


def check_environment(path: str, world: World) -> list[Finding]:
    """One line if an environment passes all checks, or one for each that fails."""
    if isinstance(world.isolation, ProcessIsolation) and world.isolation.python is not None:
        data, params = "", env_params(world.env, "train")
        report = check_in_process(world.isolation.python, world.env.type, params, num_episodes=_NUM_EPISODES)
    else:
        # Separate processes would take longer to start than to play.
        plain = replace(world, isolation=NoIsolation())
        env = plain.make("train")
        data, is_slow = getattr(env, "description", ""), env.is_slow
        close_env(env)
        report = check_env(lambda: plain.make("train"), num_episodes=1 if is_slow else _NUM_EPISODES)
    if report.ok:
        num_made = len(report.checks) - len(report.not_made)
        passed = f"'{world.env.type}': all {num_made} environment checks passed"
        return [ok(path, f"{passed}; {data}" if data else passed)]
    return [
        fail(
            path,
            f"'{world.env.type}' failed the environment check {failed.name}: {failed.detail.rstrip('.')}.",
            f"See: turnwise check {world.env.type}",
        )
        for failed in report.failures
    ]
