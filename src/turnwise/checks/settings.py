"""Settings that contradict each other are refused; settings that do nothing are named. Nothing is rewritten.

In: the settings of a run. Out: a ConfigError that lists what the rules say against them, or notes. Each rule stands in
the table RULES; what does nothing is told by the settings themselves (`Settings.idle_settings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

from pydantic import ValidationError

from turnwise.config.component import BUFFERS, CREDITS, ENVS, LEARNERS, TRANSPORTS, Registry, import_shaping
from turnwise.config.kinds import Choice
from turnwise.config.load import env_params
from turnwise.config.schema import EndpointWarmStart, RayCluster, RayIsolation, TurnwiseSettings, chosen_in
from turnwise.config.schema_learn import NoCritic, NoFilter
from turnwise.config.settings import Settings, describe_problems
from turnwise.config.trust import as_far_as_seen
from turnwise.engine import VllmEngineParams
from turnwise.errors import ConfigError
from turnwise.rollout.env_specs import _worlds, rewards_have_a_source

Rule: TypeAlias = Callable[[TurnwiseSettings], Iterator[str]]
"""Yields what is wrong: the config path, what was given, what was expected, what to do."""


def check_settings(settings: TurnwiseSettings) -> None:
    """Raise a ConfigError that lists every contradiction."""
    problems = find_contradictions(settings)
    if problems:
        raise ConfigError(
            "\n  ".join(["the settings contradict each other:", *problems]) if problems[1:] else problems[0]
        )


def find_contradictions(settings: TurnwiseSettings) -> list[str]:
    """Everything that the rules say against these settings."""
    return [problem for rule in RULES for problem in as_far_as_seen(rule(settings))]


def find_no_effect(settings: TurnwiseSettings) -> list[str]:
    """Settings that were chosen and change nothing in this combination."""
    return list(as_far_as_seen(_notes(settings, "", settings)))


def _notes(section: Settings, path: str, run: TurnwiseSettings) -> Iterator[str]:
    made = type(section)
    # A section in which a class is chosen speaks for itself and for the chosen class.
    speakers = (made,) if "idle_settings" in vars(made) else made.__bases__
    for speaker in cast("tuple[type[Settings], ...]", speakers):
        yield from (f"{path}.{name} {words}." for name, words in speaker.idle_settings(section, path, run).items())
    for name in made.model_fields:
        if isinstance(inner := getattr(section, name), Settings):
            yield from _notes(inner, f"{path}.{name}" if path else name, run)


def chosen_classes_have_their_methods(settings: TurnwiseSettings) -> Iterator[str]:
    """A class of the user's own must have what the code will call, also where it was given a name.

    Shipped ones are held to the same table by tests: to look at them here would import torch.
    """
    for path, choice, name in chosen_in(settings):
        if name not in choice.registry.shipped:
            try:
                yield from _class_problems(path, choice, name, choice.registry.get_target(name))
            except ConfigError as error:
                yield f"{path}: {error}"


def _class_problems(path: str, choice: Choice, name: str, target: object) -> Iterator[str]:
    if not callable(target):
        yield f"{path}: '{name}' is {target!r}; expected a {'class' if choice.methods else 'function'}."
        return
    if not isinstance(target, type):
        # What a function returns is known when it is called.
        if not choice.takes_functions:
            kind = choice.registry.kind.title()
            yield f"{path}: '{name}' is {target!r}; expected a class that extends turnwise.{kind}."
        return
    # Not hasattr: every class can be called, its objects only where it says so.
    written = set(dir(target)) - getattr(target, "__abstractmethods__", frozenset[str]())
    if missing := [method for method in choice.methods if method not in written]:
        yield f"{path}: '{name}' has no {', '.join(missing)}; expected a class with {', '.join(choice.methods)}."
    elif unwritten := sorted(getattr(target, "__abstractmethods__", ())):
        words = " and ".join(unwritten)
        yield f"{path}: '{name}' has no {words}, which its kind must have; write {words}."


def credit_says_what_it_needs(settings: TurnwiseSettings) -> Iterator[str]:
    name = settings.credit.type
    rule = CREDITS.get_target(name)
    if missing := [need for need in ("needs_values", "needs_groups", "needs_greedy") if not hasattr(rule, need)]:
        yield f"credit.type '{name}' does not say what it needs; set {', '.join(missing)} = True or False on the class."


def credit_has_its_critic(settings: TurnwiseSettings) -> Iterator[str]:
    name = settings.credit.type
    if getattr(CREDITS.get_target(name), "needs_values", False) and isinstance(settings.learn.critic, NoCritic):
        yield (
            f"credit.type '{name}' needs a critic and learn.critic.type is 'none'. Set learn.critic.type to "
            "'value_head' or 'model', or choose a rule without a critic, such as 'grpo'."
        )


def credit_has_its_siblings(settings: TurnwiseSettings) -> Iterator[str]:
    name, group_size = settings.credit.type, settings.rollout.group_size
    if getattr(CREDITS.get_target(name), "needs_groups", False) and group_size < 2:
        yield (f"rollout.group_size: {group_size} given; credit.type '{name}' compares siblings and needs at least 2.")


def a_reply_leaves_room_for_its_prompt(settings: TurnwiseSettings) -> Iterator[str]:
    context = settings.context
    if context.max_response_tokens >= context.max_tokens:
        yield (
            f"context.max_response_tokens: {context.max_response_tokens} given; it must be below context.max_tokens = "
            f"{context.max_tokens}, which holds prompt and reply."
        )


def a_group_fits_into_the_buffer(settings: TurnwiseSettings) -> Iterator[str]:
    buffer, group_size = settings.buffer, settings.rollout.group_size
    sizes = {"buffer.capacity": buffer.capacity}
    if buffer.unit == "experiences":
        sizes["buffer.train_batch_size"] = buffer.train_batch_size
    for path, size in sizes.items():
        if size is not None and size < group_size:
            yield (
                f"rollout.group_size: {group_size} given; a group does not fit into {path} = {size}, and groups stay "
                "whole."
            )


def tasks_suffice_for_an_exploration(settings: TurnwiseSettings) -> Iterator[str]:
    num_tasks, chosen = settings.tasks.num_tasks, settings.reward.filter
    if num_tasks is None:
        return
    rounds = 1 if isinstance(chosen, NoFilter) else chosen.max_rounds
    mixed = {f"mix.{tag}.groups": other.groups for tag, other in settings.mix.by_tag().items()}
    for path, groups in {"rollout.groups": settings.rollout.groups, **mixed}.items():
        if num_tasks < groups * rounds:
            yield (
                f"tasks.num_tasks: {num_tasks} given; one exploration plays up to {path} = {groups} different tasks in "
                f"each of {rounds} rounds, so it must be at least {groups * rounds}."
            )


def settings_of_training_fit_the_environment(settings: TurnwiseSettings) -> Iterator[str]:
    """`env.train` holds the environment's own settings, so it must fit them as `env` does."""
    for path, env, _ in _worlds(settings):
        params = cast("type[Settings]", ENVS.get_params(env.type) or Settings)
        try:
            params.model_validate(env_params(env, "train"))
        except ValidationError as error:
            yield f"{path}.train: {describe_problems(error, params)}"


def tags_differ(settings: TurnwiseSettings) -> Iterator[str]:
    if settings.env.type in settings.mix.by_tag():
        yield f"mix.{settings.env.type}: a tag must differ from env.type; give it another name."


def shaping_can_be_called(settings: TurnwiseSettings) -> Iterator[str]:
    if settings.reward.shaping is not None:
        try:
            import_shaping(settings.reward.shaping)
        except ConfigError as error:
            yield str(error)


def weights_may_be_as_old_as_they_get(settings: TurnwiseSettings) -> Iterator[str]:
    sync = settings.sync
    if settings.loop.type != "pipelined" or sync.style != "fixed" or sync.max_staleness is None:
        return
    needed = sync.interval - 1 + (sync.offset or 0)
    if sync.max_staleness < needed:
        yield (
            f"sync.max_staleness: {sync.max_staleness} given; sync.interval = {sync.interval} and sync.offset = "
            f"{sync.offset or 0} let weights be {needed} updates behind. Raise it, or lower those."
        )


def a_file_is_only_learnt_from(settings: TurnwiseSettings) -> Iterator[str]:
    mode = settings.run.mode
    if settings.buffer.offline is not None and mode != "train":
        yield f"buffer.offline: a file given; run.mode '{mode}' does not learn from one. Set run.mode=train."


def processes_meet_in_the_run_directory(settings: TurnwiseSettings) -> Iterator[str]:
    """Explorer and trainer are processes of their own, so what they share must not be in memory."""
    mode = settings.run.mode
    shared = {
        "buffer.type": (BUFFERS, settings.buffer.type, "sqlite"),
        "sync.method": (TRANSPORTS, settings.sync.method, "checkpoint"),
    }
    for path, (registry, given, expected) in shared.items():
        if mode in ("explore", "train") and not is_shared(registry, given):
            yield f"{path}: '{given}' given; run.mode '{mode}' shares it with another process. Set {path}={expected}."


def vllm_has_servers(settings: TurnwiseSettings) -> Iterator[str]:
    """Servers are given or started, and never both."""
    engine = settings.engine
    if not isinstance(engine, VllmEngineParams):
        return
    if engine.start == bool(engine.urls):
        given = f"engine.start: {engine.start} and engine.urls: {engine.urls} given"
        yield (
            f"{given}; expected one of them. Set engine.start=true to have servers started here, or "
            "engine.urls=[http://HOST:PORT] for servers that are running."
        )
    if engine.start and engine.devices and len(engine.devices) != engine.servers:
        yield (
            f"engine.devices: {len(engine.devices)} entries given; expected one for each of engine.servers = "
            f'{engine.servers}, such as ["1", "2"].'
        )


def actors_can_be_lost(settings: TurnwiseSettings) -> Iterator[str]:
    """What a lost actor held must be found again by the one that takes its place."""
    if not isinstance(settings.cluster, RayCluster):
        if isinstance(settings.rollout.isolation, RayIsolation):
            yield (
                "rollout.isolation.type: 'ray' given; environments are actors only on a cluster. Set cluster.type=ray, "
                "or rollout.isolation.type=process."
            )
        return
    if settings.run.mode != "both":
        yield (
            f"run.mode: '{settings.run.mode}' given; cluster.type 'ray' runs explorers and learner together. "
            "Set run.mode=both, or cluster.type=none."
        )
    if not is_shared(BUFFERS, settings.buffer.type):
        yield (
            f"buffer.type: '{settings.buffer.type}' given; with cluster.type 'ray' the buffer is an actor, and what it "
            "keeps must outlive it. Set buffer.type=sqlite, or leave it out."
        )


def what_is_learnt_from_tells_its_tokens(settings: TurnwiseSettings) -> Iterator[str]:
    name, mode = settings.engine.type, settings.run.mode
    if not settings.engine.tells_tokens and mode != "eval":
        yield (
            f"engine.type: '{name}' given; it tells texts, without the token ids that were sampled and their "
            f"log-probs, so nothing can be learnt from it (run.mode '{mode}'). Set engine.type to 'local', or 'vllm' "
            "for a server that tells tokens. To imitate an endpoint, set warm_start.type=endpoint; to measure one, use "
            "'turnwise eval URL'."
        )


def lessons_are_the_same_in_every_process(settings: TurnwiseSettings) -> Iterator[str]:
    """An explorer and a trainer both begin with the policy that the lessons make, each for itself."""
    mode = settings.run.mode
    if mode in ("explore", "train") and isinstance(settings.warm_start, EndpointWarmStart):
        yield (
            f"warm_start.type: 'endpoint' given; with run.mode '{mode}' two processes would ask it, and it need not "
            "say the same twice. Teach first with run.mode=both, and go on from that run's policy as model.path."
        )


def is_shared(registry: Registry, name: str) -> bool:
    """Whether what is chosen reaches from one process of a run to another."""
    return bool(getattr(registry.get_target(name), "is_shared", False))


def ranks_learn_alike(settings: TurnwiseSettings) -> Iterator[str]:
    """A learner in several processes knows of the others, and each has a device of its own."""
    learn = settings.learn
    if learn.parallel.type == "none":
        return
    if learn.type not in LEARNERS.shipped and not getattr(LEARNERS.get_target(learn.type), "takes_team", False):
        yield (
            f"learn.parallel.type: '{learn.parallel.type}' given; learn.type '{learn.type}' learns in one process. Set "
            "it to 'none', or let the class say takes_team = True and take a team in open(settings, site, team)."
        )
    if ":" in learn.device and learn.parallel.ranks > 1:
        yield (
            f"learn.device: '{learn.device}' given; learn.parallel.ranks = {learn.parallel.ranks} need a device each. "
            "Set it to 'auto', 'cuda' or 'cpu'."
        )
    yield from _ranks_have_their_gpus(settings)


def _ranks_have_their_gpus(settings: TurnwiseSettings) -> Iterator[str]:
    if not isinstance(settings.cluster, RayCluster):
        return
    gpus, device = settings.cluster.learner_gpus, settings.learn.device
    if gpus == 0 and device.startswith("cuda"):
        yield (
            f"learn.device: '{device}' given; on a cluster a rank sees the GPUs that Ray sets aside for it, and "
            "cluster.learner_gpus is 0. Set it to 1, or learn.device=cpu."
        )
    if gpus % 1:
        yield (
            f"cluster.learner_gpus: {gpus:g} given; with learn.parallel each rank needs GPUs of its own. Set it to a "
            "whole number."
        )


RULES: tuple[Rule, ...] = (
    credit_says_what_it_needs,
    credit_has_its_critic,
    credit_has_its_siblings,
    a_reply_leaves_room_for_its_prompt,
    a_group_fits_into_the_buffer,
    tasks_suffice_for_an_exploration,
    chosen_classes_have_their_methods,
    settings_of_training_fit_the_environment,
    tags_differ,
    rewards_have_a_source,
    shaping_can_be_called,
    weights_may_be_as_old_as_they_get,
    a_file_is_only_learnt_from,
    processes_meet_in_the_run_directory,
    ranks_learn_alike,
    vllm_has_servers,
    actors_can_be_lost,
    what_is_learnt_from_tells_its_tokens,
    lessons_are_the_same_in_every_process,
)
