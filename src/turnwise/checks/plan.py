"""`turnwise plan`: episodes, tokens, updates and memory of a run before it starts; packages and the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from transformers import PreTrainedConfig

from turnwise import __version__
from turnwise.checks.episodes import ProbeStats
from turnwise.checks.model import sample_first_reply
from turnwise.checks.stages import Subject, fail, ok, run_checks, warn
from turnwise.config.load import Change
from turnwise.config.schema import ImitationSettings, Lora, TurnwiseSettings
from turnwise.config.schema_learn import ModelScorerSettings
from turnwise.errors import Finding
from turnwise.infra.threads import run_async
from turnwise.loop.build import load_words, samples_in_place
from turnwise.models.activations import LayerShape, micro_batch_limit
from turnwise.models.load import chosen_device, torch_dtype, warn_of_slow_bfloat16
from turnwise.models.memory import (
    PROCESS_BYTES,
    Load,
    MemoryReport,
    ModelMemory,
    Peak,
    bytes_per_rank,
    describe_peak,
    estimate_peak,
    format_bytes,
    report_memory,
)
from turnwise.models.resolve import find_local, note_on, read_shape
from turnwise.report.console import format_duration
from turnwise.rollout.env_specs import count_eval_tasks, find_workflow
from turnwise.rollout.workflow import EnvironmentWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTokens:
    """How long an episode gets, and how much of it is shared with other episodes."""

    row: int
    """At its end, at most."""
    prompt: int = 0
    """Its first prompt, shared by the rollouts of a group; 0 if unknown."""
    beginning: int = 0
    """Common prefix of all prompts, such as instructions."""

    def live(self, num_tasks: int, num_episodes: int) -> int:
        """Tokens whose keys and values are held at once; shared ones count once."""
        prompts = self.beginning + num_tasks * (self.prompt - self.beginning)
        return prompts + num_episodes * (self.row - self.prompt)


def plan_peak(settings: TurnwiseSettings, config: PreTrainedConfig | None, memory: MemoryReport) -> Peak | None:
    """None if the model's shape is unknown."""
    shape = LayerShape.of(config) if config is not None else None
    if config is None or shape is None:
        return None
    device = chosen_device(settings.learn.device, "learn.device")
    pass_size = micro_batch_limit(config, settings.model, settings.learn, device)
    longest = settings.context.max_tokens or int(getattr(config.get_text_config(), "max_position_embeddings", 0))
    episode = _measure_episode(settings, longest)
    rows = _rows_at_once(settings)
    load = Load(
        limit=pass_size,
        longest_row=episode.row,
        sampled_tokens=max(pass_size.micro_batch_tokens, episode.row),
        live_tokens=max(episode.live(num_tasks, num_episodes) for num_tasks, num_episodes in rows),
        live_rows=max(num_episodes for _, num_episodes in rows),
        is_overlapped=not settings.loop.is_in_turns,
        is_frozen=isinstance(settings.model.lora, Lora),
        is_tied=bool(getattr(config.get_text_config(), "tie_word_embeddings", False)),
        dtype=torch_dtype(settings.model.dtype),
        device=device,
    )
    return estimate_peak(memory, shape, load)


def _rows_at_once(settings: TurnwiseSettings) -> list[tuple[int, int]]:
    """Tasks and episodes that are played at the same time: in a rollout, and in an evaluation."""
    rollout, most = settings.rollout, getattr(settings.engine, "max_rows", None)
    held_out = sum(count_eval_tasks(settings).values())
    found = []
    for num_tasks, group_size in ((rollout.groups, rollout.group_size), (held_out, 1)):
        bounds = [num_tasks * group_size, rollout.max_concurrent, most]
        at_once = min(bound for bound in bounds if bound is not None)
        found.append((-(-at_once // group_size), at_once))
    return found


def _measure_episode(settings: TurnwiseSettings, longest: int) -> EpisodeTokens:
    """From the first prompts of two tasks if a pretrained model is on this machine; else the longest allowed."""
    path = settings.model.path
    folder = None if path == "tiny" else find_local(path)
    if folder is None or not issubclass(find_workflow(settings), EnvironmentWorkflow):
        return EpisodeTokens(row=longest)
    prompts = _first_prompts(settings, str(folder))
    if not prompts:
        return EpisodeTokens(row=longest)
    same = next((n for n, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b), min(map(len, prompts)))
    prompt, is_short = max(map(len, prompts)), settings.rollout.max_turns == 1
    # Later observations are unknown; with a window of one turn every prompt is like the first.
    is_short = is_short or settings.context.window == "single_turn"
    row = min(longest, prompt + settings.context.max_response_tokens) if is_short else longest
    return EpisodeTokens(row=max(row, prompt), prompt=prompt, beginning=same)


def _first_prompts(settings: TurnwiseSettings, folder: str) -> list[list[int]]:
    words = load_words(settings, folder)
    requests = [run_async(sample_first_reply(settings, words, None, task=task))[0] for task in range(2)]
    return [request.prompt_ids.tolist() for request in requests if request is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Derived sizes; token counts are upper bounds."""

    recipe: str
    steps: int
    episodes_per_step: int
    episodes: int
    max_turns: int
    max_sampled_tokens_per_step: int
    optimizer_steps: int
    demonstrations: int
    warm_start: str
    """Its type: where the demonstrations come from."""
    eval_episodes: int
    memory: MemoryReport
    """Of a built-in model at the largest vocabulary it may get."""
    pretrained: tuple[Change, ...]
    """What the recipe's section `pretrained` changed."""
    peak: Peak | None
    """The most memory of one process at one time, and what it consists of; None where the model is not on this machine,
    and where other processes learn."""
    ranks: int
    """Processes that learn together."""
    rank_bytes: int | None
    """What each of several ranks holds of the learner's models between its passes; None with one, and where unknown."""
    notes: tuple[str, ...]
    """Settings without effect, and settings that do not fit the model."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def make_plan(settings: TurnwiseSettings, pretrained: Sequence[Change] = ()) -> Plan:
    """`pretrained`: what the recipe's section of that name changed."""
    rollout, learn = settings.rollout, settings.learn
    episodes = rollout.groups * rollout.group_size
    memory, is_parallel = plan_memory(settings), learn.parallel.type != "none"
    return Plan(
        recipe=settings.recipe,
        steps=learn.steps,
        episodes_per_step=episodes,
        episodes=episodes * learn.steps,
        max_turns=rollout.max_turns,
        max_sampled_tokens_per_step=episodes * rollout.max_turns * settings.context.max_response_tokens,
        optimizer_steps=learn.steps * learn.epochs * learn.minibatches,
        demonstrations=settings.warm_start.episodes if isinstance(settings.warm_start, ImitationSettings) else 0,
        warm_start=settings.warm_start.type,
        eval_episodes=sum(count_eval_tasks(settings).values()),
        memory=memory,
        peak=None if is_parallel else plan_peak(settings, read_shape(settings), memory),
        ranks=learn.parallel.ranks,
        rank_bytes=bytes_per_rank(memory, learn) if is_parallel else None,
        pretrained=tuple(pretrained),
        notes=_notes(settings),
    )


def _notes(settings: TurnwiseSettings) -> tuple[str, ...]:
    with Subject(settings) as subject:
        found = [each.text for each in run_checks(subject, "settings") if each.level == "warning"]
    return *found, *filter(None, (note_on(settings.model.path), warn_of_slow_bfloat16(settings.model)))


def plan_memory(settings: TurnwiseSettings) -> MemoryReport:
    """Memory of the run's models, from their shapes alone."""
    return report_memory(
        read_shape(settings),
        settings.model,
        settings.learn,
        judge_path=reward_model_path(settings),
        is_shared=samples_in_place(settings),
    )


def reward_model_path(settings: TurnwiseSettings) -> str | None:
    """The reward model that is loaded, if any."""
    judge = settings.reward.judge
    return judge.path if isinstance(judge, ModelScorerSettings) else None


def describe_plan(plan: Plan) -> str:
    lines = [
        f"{plan.recipe}: {plan.steps} steps of {plan.episodes_per_step} episodes ({plan.episodes:,} in all).",
        f"An episode has at most {plan.max_turns} turns.",
        f"A step samples at most {plan.max_sampled_tokens_per_step:,} tokens.",
        f"The whole run makes {plan.optimizer_steps:,} optimizer steps.",
        f"Before and after, {plan.eval_episodes} held-out episodes are played.",
    ]
    if plan.demonstrations:
        lines.insert(1, f"It starts from {plan.demonstrations} demonstrations by the {plan.warm_start}.")
    if plan.pretrained:
        lines.append("Because model.path is not 'tiny', the recipe's section 'pretrained' sets:")
        lines += [f"  {change}" for change in plan.pretrained]
    lines += _describe_memory(plan.memory)
    if plan.rank_bytes is not None:
        held = format_bytes(plan.rank_bytes)
        lines.append(f"  {plan.ranks} ranks learn together; each holds {held} of these, and what a pass needs.")
    lines += describe_peak(plan.peak) if plan.peak is not None else []
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _describe_memory(memory: MemoryReport) -> list[str]:
    return [
        "Its models, with weights, gradients and optimizer:",
        *(f"  {_describe_model(row)}" for row in memory.models),
        f"  in all {format_bytes(memory.loaded_bytes)}; models not loaded take {format_bytes(memory.saved_bytes)}.",
    ]


def _describe_model(row: ModelMemory) -> str:
    count = "unknown" if row.parameters is None else f"{row.parameters / 1e6:,.2f} M"
    state = "loaded" if row.is_loaded else "not loaded"
    size = format_bytes(row.total_bytes)
    return f"{row.name:12}  {state:10}  {count:>9} parameters  {size:>12}  {row.reason}"


_OURS = "turnwise"
_NOT_FOR_USERS = "dev"


def check_packages() -> list[Finding]:
    """One line if all packages are there, or one for each that is missing or too old; one for the extras."""
    try:
        stated = [Requirement(text) for text in metadata.requires(_OURS) or ()]
    except metadata.PackageNotFoundError:
        return [warn("packages", "turnwise is not installed, so its requirements are unknown.", "Run pip install .")]
    needed = [requirement for requirement in stated if requirement.marker is None]
    faults = [fault for requirement in needed if (fault := _fault(requirement))]
    found = ", ".join(
        f"{requirement.name} {metadata.version(requirement.name)}" for requirement in needed if _has(requirement)
    )
    lines = [fail("packages", fault) for fault in faults] or [ok("packages", f"turnwise {__version__}; {found}")]
    return [*lines, *_extras([requirement for requirement in stated if requirement.marker is not None])]


def _has(requirement: Requirement) -> bool:
    try:
        return bool(metadata.version(requirement.name))
    except metadata.PackageNotFoundError:
        return False


def _fault(requirement: Requirement) -> str:
    name, expected = requirement.name, requirement.specifier
    if not _has(requirement):
        return f"{name} is not installed. Install it with: pip install '{name}{expected}'"
    version = metadata.version(name)
    if expected.contains(version, prereleases=True):
        return ""
    return f"{name} {version} is installed; expected {expected}. Install it with: pip install '{name}{expected}'"


def _extras(stated: list[Requirement]) -> Iterator[Finding]:
    names = {str(requirement.marker).split('"')[1]: requirement for requirement in reversed(stated)}
    extras = {name: requirement for name, requirement in names.items() if name != _NOT_FOR_USERS}
    there = [f"{name} ({r.name} {metadata.version(r.name)})" for name, r in extras.items() if _has(r)]
    missing = [name for name, requirement in extras.items() if not _has(requirement)]
    words = f"installed: {', '.join(sorted(there)) or 'none'}"
    if missing:
        words += f"; not installed: {', '.join(sorted(missing))} (pip install 'turnwise[{sorted(missing)[0]}]')"
    yield ok("extras", words)


def check_machine() -> list[Finding]:
    """Cores, threads, free memory and GPU."""
    import torch  # noqa: PLC0415 - slow to import

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, free = torch.get_num_threads(), free_bytes()
    words = f"{cores} cores, of which torch uses {threads}, {format_bytes(free)} of memory free, {device}"
    if threads > cores:
        return [warn("machine", f"{words}. More threads than cores are slower.", "Set learn.num_threads.")]
    return [ok("machine", words)]


def free_bytes() -> int | None:
    """Memory that models may take: of the GPU if there is one."""
    import torch  # noqa: PLC0415 - see above

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    return free_host_bytes()


def free_host_bytes() -> int | None:
    """Memory of the machine itself; None if the system does not report it."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return None
    rows = dict(line.split(":", 1) for line in table.read_text(encoding="ascii").splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in rows else None


def check_memory(memory: MemoryReport, peak: Peak | None) -> list[Finding]:
    """Compare the peak of the plan with what is free now; weights alone if the peak is unknown."""
    words = ", ".join(f"{row.name} {format_bytes(row.total_bytes)}" for row in memory.models if row.is_loaded)
    needed, free = memory.loaded_bytes, free_bytes()
    if peak is None:
        words += f"; {format_bytes(needed)} in all, activations come on top"
    else:
        # Python and its packages are in memory already, those of this process.
        needed = peak.num_bytes - PROCESS_BYTES
        words += f"; about {format_bytes(peak.num_bytes)} at one time, while {peak.moment}"
    if needed is not None and free is not None and needed > free:
        return [
            fail(
                "memory",
                f"{words}; {format_bytes(free)} are free.",
                "Use a smaller model, model.lora.type=lora, or model.dtype=bfloat16.",
            )
        ]
    return [ok("memory", words)]


def fits(memory: MemoryReport) -> bool:
    """Whether a model of this shape can be loaded here for the probe."""
    engine, free = next(row for row in memory.models if row.name == "engine"), free_bytes()
    return engine.total_bytes is None or free is None or engine.total_bytes < free


def check_time(plan: Plan, probe: ProbeStats) -> list[Finding]:
    """Time of the rollouts at the speed of the probe; more episodes at once are faster."""
    if not probe.sampled_tokens or probe.seconds <= 0:
        return [warn("time", "unknown: no token was sampled in the probe.")]
    pace = probe.sampled_tokens / probe.seconds
    step_s = plan.episodes_per_step * probe.sampled_tokens / probe.episodes / pace
    return [
        ok(
            "time",
            f"the rollouts of a step take about {format_duration(step_s)} at {pace:,.0f} tokens a second, those of all "
            f"{plan.steps} steps about {format_duration(step_s * plan.steps)}; learning comes on top",
        )
    ]
