"""`turnwise serve`: a policy behind an OpenAI-compatible endpoint, and what its clients do as experience on disk.

In: a run directory, a model or a recipe. Out: finished groups in the run's `experience.db`, where a learner
finds them; what the learner publishes meanwhile is served from then on. A target that is no run, or one whose buffer is
not on disk, gets a new run directory that starts from its policy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from rich.console import Console

from turnwise.checks.settings import is_shared
from turnwise.checks.setup import validate_run
from turnwise.config.component import BUFFERS, TRANSPORTS
from turnwise.config.load import dump_settings, load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, ModelError
from turnwise.experience.build import build_experiences
from turnwise.infra.atomic_files import atomic_write, read_text
from turnwise.infra.threads import end_tasks
from turnwise.infra.wait_tracking import write_waits_file
from turnwise.loop.build import load_words, open_buffer, open_engine
from turnwise.loop.policies import find_policy, is_model_reference, resolve_model
from turnwise.loop.split_processes import Shared, as_groups
from turnwise.models.load import read_model_file
from turnwise.protocols import Buffer, ChatTemplate, Engine, Mailbox
from turnwise.report.console import phase
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory, new_run_path, settings_file_of
from turnwise.report.trajectories import TrajectoryJournal
from turnwise.rollout.env_specs import resolve_total_steps
from turnwise.rollout.model_handle import ModelHandle
from turnwise.run.api import Run
from turnwise.run.checkpoints import read_progress
from turnwise.serve.http import LOOPBACK
from turnwise.serve.recorder import SPLIT, ChatEndpoint, EpisodeRecorder
from turnwise.types import Group, Sampling, Task, TrajectoryId

log = logging.getLogger(__name__)

_FOLLOW_S = 0.5
"""How often it looks for newer weights."""
TOKEN_VARIABLE = "TURNWISE_SERVE_TOKEN"
_MIN_TOKEN_LENGTH = 16
"""Of a token of one's own, where other machines can try to guess it."""
_PLAIN = "served"
"""What a run is called whose model is served as it is, without a recipe."""
_MAX_PLAIN_TOKENS = 32_768
_UNKNOWN_TOKENS = 4096
"""The longest conversation with a model whose folder does not say what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A policy to be served, and the run its experience belongs to."""

    settings: TurnwiseSettings
    directory: RunDirectory
    template: ChatTemplate
    engine: Engine
    buffer: Buffer


def load_served(target: str, *, recipe: str | None = None, overrides: Sequence[str] = ()) -> Served:
    """A run's newest policy, a model as it is or in the setting of a recipe, or a recipe's own model."""
    path = Path(target)
    is_run = (path / "config.yaml").is_file()
    if is_run and (recipe or overrides):
        raise ConfigError(f"run {path} is served with its own settings; give no recipe and no overrides.")
    if recipe and not is_model_reference(target):
        raise ConfigError(f"--recipe goes with a model folder or name; '{target}' is none.")
    if is_run:
        # The tokenizer of a checkpoint has the run's chat template already.
        settings = load_settings(str(path / "config.yaml"), ["context.template=null"])
        policy = str(Run(path).policy)
        if is_shared(BUFFERS, settings.buffer.type):
            settings = _with_learner_elsewhere(settings)
            return _build(settings, RunDirectory.open(path), policy, read_progress(Path(policy).parent).policy_version)
    elif is_model_reference(target):
        is_of_a_run = settings_file_of(path) is not None
        found = find_policy(target, overrides, recipe=recipe or (None if is_of_a_run else _plain(path)))
        settings, policy = found.settings, found.resolve()
    else:
        settings = load_settings(target, overrides)
        validate_run(settings)
        policy = resolve_model(settings)
    settings = _start_from(settings, policy)
    validate_run(settings)
    settings = resolve_total_steps(settings)
    directory = RunDirectory.create(
        new_run_path(Path(settings.run.root), settings.recipe),
        config_yaml=dump_settings(settings),
        manifest=collect_manifest(settings.recipe, settings.run.seed),
    )
    return _build(settings, directory, policy, 0)


def _plain(model: Path) -> dict[str, object]:
    """The setting of a model without a recipe: what clients say is all it sees, and it says what it likes.

    The environment is there because every run has one. It is not what clients do, so it is not evaluated either.
    """
    room = _UNKNOWN_TOKENS
    described = model.expanduser() / "config.json"
    if described.is_file():
        longest = read_model_file(described).get("max_position_embeddings", room)
        if not isinstance(longest, int) or longest < 1:
            raise ModelError(f"{described}: max_position_embeddings must be a whole number above 0, got {longest!r}.")
        room = min(longest, _MAX_PLAIN_TOKENS)
    return {
        "recipe": _PLAIN,
        "env": {"type": "bandit"},
        "eval": {"episodes": 0},
        "context": {"answer": {"type": "plain"}, "max_tokens": room, "max_response_tokens": max(room // 4, 1)},
    }


def _start_from(settings: TurnwiseSettings, policy: str) -> TurnwiseSettings:
    """The settings of a run that learns from what this policy does: it begins with it, as it is."""
    # A hub name is no path on this machine.
    path = str(Path(policy).resolve()) if Path(policy).is_dir() else policy
    changes = {"model.path": path, "warm_start.type": "none"}
    if not is_shared(BUFFERS, settings.buffer.type):
        changes["buffer.type"] = "sqlite"
    return _with_learner_elsewhere(load_settings(settings.model_dump(), changes))


def _with_learner_elsewhere(settings: TurnwiseSettings) -> TurnwiseSettings:
    """The learner is another process, today or tomorrow: weights must reach from one to another."""
    if is_shared(TRANSPORTS, settings.sync.method):
        return settings
    return load_settings(settings.model_dump(), {"sync.method": "checkpoint"})


def _let_others_train(directory: RunDirectory) -> None:
    """All processes of a run share its settings, and whoever learns from what is served is another one than this."""
    text = read_text(directory.config)
    settings = load_settings(str(directory.config))
    if not is_shared(TRANSPORTS, settings.sync.method):
        comments = [line for line in text.splitlines(keepends=True) if line.startswith("#")]
        atomic_write(directory.config, "".join(comments) + dump_settings(_with_learner_elsewhere(settings)))
        directory.config.chmod(0o600)


def _build(settings: TurnwiseSettings, directory: RunDirectory, policy: str, version: int) -> Served:
    words = load_words(settings, policy)
    # What is recorded must say which policy sampled it.
    engine = open_engine(words, policy, policy_version=version, run_path=directory.path)
    buffer = open_buffer(settings, directory.path)
    return Served(settings=settings, directory=directory, template=words.template, engine=engine, buffer=buffer)


@asynccontextmanager
async def open_endpoint(
    served: Served,
    *,
    token: str,
    port: int = 0,
    host: str = LOOPBACK,
    on_policy: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[ChatEndpoint]:
    """The endpoint of a policy; when it closes, what has ended is saved.

    Clients are the explorer of the run: a trainer waits for more of their experience as long as they can come, and
    what it publishes is served from then on; `on_policy` hears of its version.
    """
    shared = Shared.open(served.settings, served.directory)
    explorer = shared.explorer
    explorer.claim()
    _let_others_train(served.directory)
    record = explorer.read()
    explorer.write(replace(record, has_ended=False))
    recorder = _make_recorder(served, _recover(served))
    endpoint = ChatEndpoint(recorder, token=token, model_name=served.settings.recipe)
    following = asyncio.create_task(_follow(served.engine, shared.mailbox, on_policy))
    try:
        await endpoint.start(port, host)
        with write_waits_file(served.directory.waits):
            yield endpoint
    finally:
        await end_tasks([following])
        await endpoint.close()
        recorder.close()
        await served.engine.close()
        explorer.write(replace(record, has_ended=True))
        explorer.leave()


async def _follow(engine: Engine, mailbox: Mailbox, on_policy: Callable[[int], None]) -> None:
    """Load what a trainer publishes, as it comes; weights that cannot be loaded leave the policy as it is."""
    tried = engine.policy_version
    while True:
        try:
            newest = mailbox.newest()
            if newest is not None and newest.policy_version > tried:
                tried = newest.policy_version
                mark, weights = await asyncio.to_thread(mailbox.fetch)
                await engine.update_weights(weights, mark.policy_version)
                on_policy(mark.policy_version)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one version, the next may be right
            log.warning("the policy stays at version %d: %s: %s", engine.policy_version, type(error).__name__, error)
        await asyncio.sleep(_FOLLOW_S)


def serve(
    target: str,
    console: Console,
    *,
    port: int = 0,
    host: str = LOOPBACK,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Serve until interrupted, to programs of this machine unless `host` says otherwise."""
    token = _read_token(os.environ, host)
    with phase(console, "loading the policy"):
        served = load_served(target, recipe=recipe, overrides=overrides)
    asyncio.run(
        _serve_until_interrupted(
            served,
            console,
            token or secrets.token_urlsafe(32),
            port=port,
            host=host,
            is_secret=token is not None,
        )
    )


def _read_token(environment: Mapping[str, str], host: str) -> str | None:
    """The token that the user chose; None: one is made. Without one nobody is served, wherever they are."""
    given = environment.get(TOKEN_VARIABLE)
    if given is None:
        return None
    if not given or not given.isascii() or any(c.isspace() for c in given):
        raise ConfigError(
            f"{TOKEN_VARIABLE} is empty or has blanks or letters beyond ASCII; give a token, or unset it."
        )
    if not _is_loopback(host) and len(given) < _MIN_TOKEN_LENGTH:
        raise ConfigError(
            f"{TOKEN_VARIABLE} has {len(given)} characters, and --host {host} lets other machines try tokens; give one "
            f"of at least {_MIN_TOKEN_LENGTH}, or unset it and one is made."
        )
    return given


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve_until_interrupted(
    served: Served, console: Console, token: str, *, port: int, host: str, is_secret: bool
) -> None:
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tell_policy(version: int) -> None:
        tell(f"policy      version {version}, from the trainer")

    async with open_endpoint(served, token=token, port=port, host=host, on_policy=tell_policy) as endpoint:
        lines = (
            f"base URL    {endpoint.base_url()}",
            f"token       {'that of ' + TOKEN_VARIABLE if is_secret else token}",
            f"policy      version {served.engine.policy_version}",
            f"experience  {served.directory.experience}",
            *(() if _is_loopback(host) else ("open to      whoever reaches this machine and has the token",)),
            "Ctrl-C ends it.",
        )
        for line in lines:
            tell(line)
        await interrupted.wait()
    tell(f"ended; {len(served.buffer)} experiences wait to be learnt from.")


def _recover(served: Served) -> TrajectoryJournal:
    """Save what a server before this one had written down when it was killed."""
    journal = TrajectoryJournal(served.directory.unfinished / "served", 0)
    served.buffer.add(build_experiences(as_groups(journal.read())))
    journal.remove()
    return journal


def _make_recorder(served: Served, journal: TrajectoryJournal) -> EpisodeRecorder:
    settings, context = served.settings, served.settings.context
    numbers = _free_numbers(served)

    def open_model(trajectory: TrajectoryId) -> ModelHandle:
        return ModelHandle(
            served.engine,
            served.template,
            sampling=Sampling(temperature=settings.rollout.temperature, max_new_tokens=context.max_response_tokens),
            max_tokens=context.max_tokens,
            seed=settings.run.seed,
            name=str(trajectory),
        )

    def save(group: Group) -> None:
        served.buffer.add(build_experiences([group]))

    return EpisodeRecorder(open_model, lambda: next(numbers), save, context=context, journal=journal)


def _free_numbers(served: Served) -> Iterator[tuple[int, Task]]:
    """Rollout and task of one new group after another; a run that was served before goes on counting."""
    settings = served.settings
    rollout = served.engine.policy_version
    tag = _PLAIN if settings.recipe == _PLAIN else settings.env.type
    for number in count():
        task = Task(tag=tag, seed=number, split=SPLIT)
        if not served.buffer.has_group(TrajectoryId(rollout, task.id, 0).group):
            yield rollout, task
