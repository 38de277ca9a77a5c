"""Checks of settings alone: contradictions, settings without effect, settings that do not suit the model.

Nothing is rewritten. Each function with `@check("settings")` is one check; unused settings are reported by the settings
themselves (`Settings.idle_settings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import ValidationError

from turnwise.checks.stages import Subject, check, fail, run_checks, warn
from turnwise.config.component import BUFFERS, ENVS, LEARNERS, TRANSPORTS, ClassRegistry, import_shaping
from turnwise.config.kinds import Choice
from turnwise.config.load import env_params
from turnwise.config.schema import EndpointWarmStart, RayCluster, RayIsolation, TurnwiseSettings, chosen_in
from turnwise.config.schema_learn import NoCritic, NoFilter
from turnwise.config.settings import Settings, describe_problems
from turnwise.config.trust import until_untrusted
from turnwise.engine import VllmEngineParams
from turnwise.errors import ConfigError, Finding
from turnwise.rollout.env_specs import World, _worlds, main_env, rewards_have_a_source


def check_settings(settings: TurnwiseSettings) -> None:
    """Raise a ConfigError that lists every contradiction."""
    problems = find_contradictions(settings)
    if problems:
        raise ConfigError("\n  ".join(["Invalid configuration:", *problems]) if problems[1:] else problems[0])


def find_contradictions(settings: TurnwiseSettings) -> list[str]:
    """Every contradiction in these settings, one line each."""
    with Subject(settings) as subject:
        return [found.text for found in run_checks(subject, "settings") if found.level == "error"]


def find_unused_settings(settings: TurnwiseSettings) -> list[str]:
    """Settings that were changed and have no effect in this combination, one line each."""
    return list(until_untrusted(_unused(settings, "", settings)))


def _unused(section: Settings, path: str, run: TurnwiseSettings) -> Iterator[str]:
    made = type(section)
    # A section in which a plain class is chosen speaks for itself and for the chosen class.
    is_composed = made.__bases__[1:] and "idle_settings" not in vars(made)
    speakers = made.__bases__ if is_composed else (made,)
    for speaker in cast("tuple[type[Settings], ...]", speakers):
        yield from (f"{path}.{name} {reason}." for name, reason in speaker.idle_settings(section, path, run).items())
    for name in made.model_fields:
        if isinstance(inner := getattr(section, name), Settings):
            yield from _unused(inner, f"{path}.{name}" if path else name, run)


# --- the estimator ---------------------------------------------------------------------------------------------------


@check("settings")
def check_critic(subject: Subject) -> Iterator[Finding]:
    name = subject.settings.credit.type
    if subject.settings.credit.needs_values and isinstance(subject.settings.learn.critic, NoCritic):
        yield fail(
            "credit.type",
            f"credit.type '{name}' needs a critic and learn.critic.type is 'none'.",
            "Set learn.critic.type to 'value_head' or 'model', or choose an estimator without a critic, such as "
            "'grpo'.",
        )


@check("settings")
def check_group_size(subject: Subject) -> Iterator[Finding]:
    name, group_size = subject.settings.credit.type, subject.settings.rollout.group_size
    if subject.settings.credit.needs_groups and group_size < 2:
        yield fail(
            "rollout.group_size",
            f"{group_size} given; credit.type '{name}' compares rollouts of a group and needs at least 2.",
        )


# --- sizes -----------------------------------------------------------------------------------------------------------


@check("settings")
def check_response_fits_context(subject: Subject) -> Iterator[Finding]:
    context = subject.settings.context
    if context.max_response_tokens >= context.max_tokens:
        yield fail(
            "context.max_response_tokens",
            f"{context.max_response_tokens} given; it must be below context.max_tokens = {context.max_tokens}, which "
            "holds prompt and reply.",
        )


@check("settings")
def check_group_fits_buffer(subject: Subject) -> Iterator[Finding]:
    buffer, group_size = subject.settings.buffer, subject.settings.rollout.group_size
    sizes = {"buffer.capacity": buffer.capacity}
    if buffer.unit == "experiences":
        sizes["buffer.train_batch_size"] = buffer.train_batch_size
    for path, size in sizes.items():
        if size is not None and size < group_size:
            yield fail(
                "rollout.group_size",
                f"{group_size} given; a group does not fit into {path} = {size}, and groups are not split.",
            )


@check("settings")
def check_num_tasks(subject: Subject) -> Iterator[Finding]:
    settings = subject.settings
    num_tasks, chosen = settings.tasks.num_tasks, settings.reward.filter
    if num_tasks is None:
        return
    rounds = 1 if isinstance(chosen, NoFilter) else chosen.max_rounds
    mixed = {f"mix.{tag}.groups": other.groups for tag, other in settings.mix.by_tag().items()}
    for path, groups in {"rollout.groups": settings.rollout.groups, **mixed}.items():
        if num_tasks < groups * rounds:
            yield fail(
                "tasks.num_tasks",
                f"{num_tasks} given; one step plays up to {path} = {groups} different tasks in each of {rounds} "
                f"rounds, so it must be at least {groups * rounds}.",
            )


# --- classes, environments and rewards -------------------------------------------------------------------------------


@check("settings")
def check_custom_classes(subject: Subject) -> Iterator[Finding]:
    """A class of the user's own must have the methods that are called.

    Shipped ones are tested against the same table: to import them here would import torch.
    """
    for path, choice, name in chosen_in(subject.settings):
        if isinstance(choice.registry, ClassRegistry) and name not in choice.registry.shipped:
            try:
                problems = list(_class_problems(choice, name, choice.registry.get_target(name)))
            except ConfigError as error:
                problems = [str(error)]
            yield from (fail(path, problem) for problem in problems)


def _class_problems(choice: Choice, name: str, target: object) -> Iterator[str]:
    if not callable(target):
        yield f"'{name}' is {target!r}; expected a {'class' if choice.methods else 'function'}."
        return
    if not isinstance(target, type):
        # What a function returns is known when it is called.
        if not choice.takes_functions:
            kind = choice.registry.kind.title()
            yield f"'{name}' is {target!r}; expected a class that extends turnwise.{kind}."
        return
    # Not hasattr: every class can be called, its objects only if it says so.
    written = set(dir(target)) - getattr(target, "__abstractmethods__", frozenset[str]())
    if missing := [method for method in choice.methods if method not in written]:
        yield f"'{name}' has no {', '.join(missing)}; expected a class with {', '.join(choice.methods)}."
    elif unwritten := sorted(getattr(target, "__abstractmethods__", ())):
        names = " and ".join(unwritten)
        yield f"'{name}' has no {names}, which its kind must have; write {names}."


@check("settings")
def check_env_train_settings(subject: Subject) -> Iterator[Finding]:
    """`env.train` holds the environment's own settings, so it must fit them as `env` does."""
    for path, env, _ in _worlds(subject.settings):
        params = cast("type[Settings]", ENVS.get_params(env.type) or Settings)
        try:
            params.model_validate(env_params(env, "train"))
        except ValidationError as error:
            yield fail(f"{path}.train", describe_problems(error, params))


@check("settings")
def check_unique_tags(subject: Subject) -> Iterator[Finding]:
    tag = subject.settings.env.type
    if tag in subject.settings.mix.by_tag():
        yield fail(f"mix.{tag}", "a tag must differ from env.type; give it another name.")


@check("settings", where="reward.judge")
def check_reward_source(subject: Subject) -> Iterator[Finding]:
    for message in rewards_have_a_source(subject.settings):
        yield fail("reward.judge", message)


@check("settings", where="reward.shaping")
def check_shaping_function(subject: Subject) -> None:
    if subject.settings.reward.shaping is not None:
        import_shaping(subject.settings.reward.shaping)


# --- processes -------------------------------------------------------------------------------------------------------


@check("settings")
def check_staleness_bound(subject: Subject) -> Iterator[Finding]:
    sync = subject.settings.sync
    if subject.settings.loop.type != "pipelined" or sync.style != "fixed" or sync.max_staleness is None:
        return
    needed = sync.interval - 1 + (sync.offset or 0)
    if sync.max_staleness < needed:
        yield fail(
            "sync.max_staleness",
            f"{sync.max_staleness} given; sync.interval = {sync.interval} and sync.offset = {sync.offset or 0} let "
            f"weights be {needed} updates behind. Raise it, or lower those.",
        )


@check("settings")
def check_offline_mode(subject: Subject) -> Iterator[Finding]:
    mode = subject.settings.run.mode
    if subject.settings.buffer.offline is not None and mode != "train":
        yield fail("buffer.offline", f"a file given; run.mode '{mode}' does not learn from one.", "Set run.mode=train.")


@check("settings")
def check_shared_storage(subject: Subject) -> Iterator[Finding]:
    """Explorer and trainer are separate processes, so what they share must not be in memory."""
    mode = subject.settings.run.mode
    shared = {
        "buffer.type": (BUFFERS, subject.settings.buffer.type, "sqlite"),
        "sync.method": (TRANSPORTS, subject.settings.sync.method, "checkpoint"),
    }
    for path, (registry, given, expected) in shared.items():
        if mode in ("explore", "train") and not is_shared(registry, given):
            yield fail(
                path, f"'{given}' given; run.mode '{mode}' shares it with another process.", f"Set {path}={expected}."
            )


@check("settings")
def check_vllm_servers(subject: Subject) -> Iterator[Finding]:
    """Servers are given or started, never both."""
    engine = subject.settings.engine
    if not isinstance(engine, VllmEngineParams):
        return
    if engine.start == bool(engine.urls):
        yield fail(
            "engine.start",
            f"{engine.start} and engine.urls: {engine.urls} given; expected one of them.",
            "Set engine.start=true to start servers here, or engine.urls=[http://HOST:PORT] for running servers.",
        )
    if engine.start and engine.devices and len(engine.devices) != engine.servers:
        yield fail(
            "engine.devices",
            f"{len(engine.devices)} entries given; expected one for each of engine.servers = {engine.servers}, such "
            'as ["1", "2"].',
        )


@check("settings")
def check_ray_durability(subject: Subject) -> Iterator[Finding]:
    """The actor that replaces a lost one must find what that one held."""
    settings = subject.settings
    if not isinstance(settings.cluster, RayCluster):
        if isinstance(settings.rollout.isolation, RayIsolation):
            yield fail(
                "rollout.isolation.type",
                "'ray' given; environments are actors only on a cluster.",
                "Set cluster.type=ray, or rollout.isolation.type=process.",
            )
        return
    if settings.run.mode != "both":
        yield fail(
            "run.mode",
            f"'{settings.run.mode}' given; cluster.type 'ray' runs explorers and learner together.",
            "Set run.mode=both, or cluster.type=none.",
        )
    if not is_shared(BUFFERS, settings.buffer.type):
        yield fail(
            "buffer.type",
            f"'{settings.buffer.type}' given; with cluster.type 'ray' the buffer is an actor, and its content must "
            "outlive it.",
            "Set buffer.type=sqlite, or leave it out.",
        )


@check("settings")
def check_engine_returns_tokens(subject: Subject) -> Iterator[Finding]:
    engine, mode = subject.settings.engine, subject.settings.run.mode
    if not engine.tells_tokens and mode != "eval":
        yield fail(
            "engine.type",
            f"'{engine.type}' given; it returns text without token ids and log-probs, so it cannot be used for "
            f"training (run.mode '{mode}').",
            "Set engine.type to 'local', or 'vllm' for a server that returns tokens. To imitate an endpoint, set "
            "warm_start.type=endpoint; to evaluate one, use 'turnwise eval URL'.",
        )


@check("settings")
def check_warm_start_mode(subject: Subject) -> Iterator[Finding]:
    """Explorer and trainer each compute the warm start, so its demonstrations must be the same in both."""
    mode = subject.settings.run.mode
    if mode in ("explore", "train") and isinstance(subject.settings.warm_start, EndpointWarmStart):
        yield fail(
            "warm_start.type",
            f"'endpoint' given; with run.mode '{mode}' two processes would ask it, and its replies may differ.",
            "Run the warm start with run.mode=both, and continue with that run's policy as model.path.",
        )


def is_shared(registry: ClassRegistry, name: str) -> bool:
    """Whether what is chosen reaches from one process of a run to another."""
    return bool(getattr(registry.get_target(name), "is_shared", False))


@check("settings")
def check_parallel_learner(subject: Subject) -> Iterator[Finding]:
    """A learner in several processes must support it, and each process has a device of its own."""
    learn = subject.settings.learn
    if learn.parallel.type == "none":
        return
    if learn.type not in LEARNERS.shipped and not getattr(LEARNERS.get_target(learn.type), "takes_team", False):
        yield fail(
            "learn.parallel.type",
            f"'{learn.parallel.type}' given; learn.type '{learn.type}' learns in one process.",
            "Set it to 'none', or set takes_team = True on the class and take a team in open(settings, site, team).",
        )
    if ":" in learn.device and learn.parallel.ranks > 1:
        yield fail(
            "learn.device",
            f"'{learn.device}' given; learn.parallel.ranks = {learn.parallel.ranks} need a device each.",
            "Set it to 'auto', 'cuda' or 'cpu'.",
        )
    if not isinstance(subject.settings.cluster, RayCluster):
        return
    gpus, device = subject.settings.cluster.learner_gpus, learn.device
    if gpus == 0 and device.startswith("cuda"):
        yield fail(
            "learn.device",
            f"'{device}' given; on a cluster a rank sees the GPUs that Ray reserves for it, and cluster.learner_gpus "
            "is 0.",
            "Set it to 1, or learn.device=cpu.",
        )
    if gpus % 1:
        yield fail(
            "cluster.learner_gpus",
            f"{gpus:g} given; with learn.parallel each rank needs GPUs of its own.",
            "Set it to a whole number.",
        )


# --- settings that run and are probably not meant --------------------------------------------------------------------

_MAX_LR, _MAX_LR_LORA = 5e-4, 2e-3
"""Highest learning rates that suit a pretrained model: for all weights, and for adapters."""
_MIN_TEMPERATURE = 0.2
_MIN_REPLY_TOKENS = 8


@check("settings")
def unused_settings(subject: Subject) -> Iterator[Finding]:
    for line in find_unused_settings(subject.settings):
        yield warn(line.partition(" ")[0], line, kind="unused_setting")


@check("settings")
def settings_of_tiny_models(subject: Subject) -> Iterator[Finding]:
    """Settings that suit the built-in model, which starts from random weights, and not a pretrained one."""
    settings = subject.settings
    if settings.model.path == "tiny":
        return
    lr, is_lora = settings.learn.optim.lr, settings.model.lora.type == "lora"
    limit = _MAX_LR_LORA if is_lora else _MAX_LR
    if lr > limit or (lr == limit and not is_lora):
        usual = "1e-4" if is_lora else "1e-6 to 1e-5, or model.lora.type=lora with 1e-4"
        yield warn(
            "learn.optim.lr",
            f"learn.optim.lr = {lr:g} is too high for a pretrained model and will degrade it within a few updates.",
            f"Try {usual}.",
            kind="toy_learning_rate",
        )
    if settings.rollout.temperature < _MIN_TEMPERATURE and settings.rollout.group_size > 1:
        yield warn(
            "rollout.temperature",
            f"rollout.temperature = {settings.rollout.temperature:g} gives the same replies in all rollouts of a "
            "group, so that their returns do not differ.",
            "Set it to 0.7 to 1.",
            kind="low_temperature",
        )
    if settings.warm_start.type == "none":
        yield from _without_warm_start(main_env(settings))


def _without_warm_start(world: World) -> Iterator[Finding]:
    """What a pretrained model cannot know without demonstrations."""
    context, answer = world.context, world.context.answer
    if context.instructions == "none" and not world.is_judged:
        yield warn(
            "context.instructions",
            "context.instructions is 'none': the prompt of a pretrained model has neither the rules nor the actions "
            "nor the answer format.",
            "Set context.instructions=full, or warm_start.type=oracle.",
            kind="no_instructions",
        )
    if context.max_response_tokens < _MIN_REPLY_TOKENS and not world.is_judged:
        yield warn(
            "context.max_response_tokens",
            f"context.max_response_tokens = {context.max_response_tokens} suits the built-in model; in the tokens of "
            "another one an answer with its tags seldom fits.",
            "Set it to 32 or more.",
            kind="toy_reply",
        )
    if answer.is_strict and answer.type != "plain":
        yield warn(
            "context.answer.is_strict",
            "context.answer.is_strict rejects every reply with text beside its tags, which models without a warm "
            "start write.",
            "Set context.answer.is_strict=false.",
            kind="strict_answer",
        )
