"""Every setting, in pipeline order. The strings under the fields are the reference.

Sections with keys that depend on a choice are typed here by the keys that they always have; `config/kinds.py` adds
those of the chosen class before anything is validated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from turnwise.config.component import (
    BUFFERS,
    ENGINES,
    ENVS,
    LEARNERS,
    LOOPS,
    TRANSPORTS,
    WORKFLOWS,
    Registry,
)
from turnwise.config.kinds import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    PRIORITIES,
    AdvantageEstimator,
    Choice,
    EndpointSettings,
    EngineSettings,
    EnvSettings,
    GroupPriority,
    LoopSettings,
    PolicyLoss,
    _compose,
    _section,
    _spell_as_registered,
    params_class,
)
from turnwise.config.schema_learn import LearnSettings, RewardSettings
from turnwise.config.settings import Settings, WholeSettings
from turnwise.config.trust import UntrustedCodeError
from turnwise.errors import ConfigError


class AuditSettings(Settings):
    is_on: bool = True
    """Check every batch before its update, and the update after it."""
    on_breach: Literal["stop", "quarantine"] = "stop"
    """End the run with a report of the tokens that are wrong; or leave their groups out and go on. What is wrong with
    an update itself always ends it."""
    rescored_tokens: int = Field(default=512, ge=0)
    """Tokens of each batch that the learner scores once more before the update, in whole rows and at least one; 0:
    none."""
    max_gap: PositiveFloat | Literal["auto"] = "auto"
    """Largest mean distance, in nats per token, between recorded log-probs and the learner's at the same version. auto:
    1e-4 with engine.type local in float32, 0.02 with other engines, 0.2 with model.dtype bfloat16."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.is_on:
            return {}
        return self.idle("on_breach", "rescored_tokens", "max_gap", why=f"with {path}.is_on false")


BufferUnit = Literal["experiences", "groups", "tokens"]


class BufferSettings(Settings):
    type: str = "memory"
    """Where experiences wait: in memory, or with `sqlite` in `experience.db` in the run directory, which outlives a
    killed run; or 'package.module:Class'."""
    train_batch_size: PositiveInt | None = None
    """Most of one update, in `unit`; the rest is kept for the next. Null: everything there is."""
    unit: BufferUnit = "experiences"
    """What `train_batch_size` counts."""
    capacity: PositiveInt | None = None
    """Most experiences that wait or may be used again; the lowest priority is dropped beyond it. Null: no limit."""
    priority: GroupPriority = Field(default_factory=lambda: PRIORITIES.parse({}))
    """Which groups are learnt from first, by `type`; of equal ones, those that came first."""
    reuse_cooldown: PositiveInt | None = None
    """Updates until a group may be learnt from again; 1: in the next. Null: never again."""
    offline: str | None = None
    """A file that `turnwise export` wrote, to learn from without exploring; null: learn from what is explored."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.train_batch_size is not None or self.unit == "experiences":
            return {}
        return {"unit": f"'{self.unit}' has no effect without {path}.train_batch_size"}


class NoCluster(Settings):
    type: Literal["none"] = "none"
    """Everything is in the process of the run."""


class RayCluster(Settings):
    type: Literal["ray"]
    """Explorers, learner and buffer are Ray actors, on one machine or many."""
    address: str | None = None
    """Of a cluster that is running: 'auto' or host:port. Null: a local one is started, and stopped with the run."""
    explorers: PositiveInt = 1
    """Actors that play, each with an engine and environments of its own; `turnwise explorers RUN N` changes it while
    the run goes on. The groups of a rollout are dealt out among them."""
    explorer_cpus: PositiveFloat = 1.0
    """Cores that Ray sets aside for each explorer; on a local cluster all share those of the machine."""
    explorer_gpus: float = Field(default=0.0, ge=0)
    """GPUs of each explorer, for its engine."""
    learner_cpus: PositiveFloat = 1.0
    """Cores that Ray sets aside for the learner; with learn.parallel, for each of its ranks."""
    learner_gpus: float = Field(default=0.0, ge=0)
    """GPUs of the learner; with learn.parallel, of each of its ranks. 0: ranks compute on the CPU."""
    start_timeout_s: PositiveFloat = 300.0
    """Longest wait for a place in the cluster, and for an actor there to begin."""


class AnswerFormat(Settings):
    type: Literal["answer", "think_answer", "plain"] = "answer"
    """`<answer>…</answer>`; the same after `<think>…</think>`; or the whole reply as the action."""
    separator: str = Field(default="||", min_length=1)
    """Stands between the actions of one answer."""
    max_actions_per_turn: PositiveInt = 1
    """Further actions of an answer are cut."""
    is_strict: bool = False
    """Refuse an answer with text before or after the tags; otherwise such text is ignored."""
    forced_prefix: str = ""
    """Text put at the start of each reply for the model, never trained."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.type != "plain":
            return {}
        return self.idle("separator", "max_actions_per_turn", "is_strict", why=f"with {path}.type 'plain'")


_OF_EVERY_TEMPLATE = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that the conversation itself fills in."""


class ContextSettings(Settings):
    window: Literal["full", "sliding", "single_turn"] = "full"
    """What the model sees: all turns, the last `window_turns`, or the current state only."""
    window_turns: PositiveInt = 4
    """Turns kept by the sliding window."""
    system_prompt: str = ""
    """First message of every conversation; empty: none."""
    instructions: Literal["full", "none"] = "full"
    """Whether the first message explains rules, symbols, actions and the answer format."""
    answer: AnswerFormat = AnswerFormat()
    """How a reply says what to do."""
    tell_invalid: bool = False
    """Whether a turn that was not understood is told: the next state begins with a line about it."""
    max_tokens: PositiveInt = 2048
    """Longest segment, reply included; an episode that would outgrow it is truncated."""
    max_response_tokens: PositiveInt = 64
    """Longest reply in one turn."""
    template: str | None = None
    """A file with a Jinja chat template to use instead of the model's own; null: the model's own."""
    template_kwargs: dict[str, bool | int | float | str] = Field(default={})
    """Values for variables of the chat template, such as `{enable_thinking: false}`; saved with every checkpoint."""

    @field_validator("template_kwargs")
    @classmethod
    def _check_names(cls, given: dict[str, object]) -> dict[str, object]:
        for name in given:
            if not name.isidentifier() or name in _OF_EVERY_TEMPLATE:
                why = "is filled in by the conversation" if name in _OF_EVERY_TEMPLATE else "is no name of a variable"
                raise ValueError(f"'{name}' {why}; expected a variable of the chat template, such as enable_thinking")
        return given

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle: dict[str, str] = {}
        if self.window != "sliding":
            idle |= self.idle("window_turns", why=f"with {path}.window '{self.window}'")
        if path != "context":
            idle |= self.idle("template", "template_kwargs", why="here: all environments share one; set it in context")
        return idle


class EvalSettings(Settings):
    episodes: int | Literal["all"] = Field(default=400)
    """Held-out episodes of each environment, always the same; `all`: every held-out task once, where they are rows of
    a file, and the default where `env.eval_path` is given; 0: nothing is evaluated, and a trainer of its own opens no
    engine."""
    every: int = Field(default=0, ge=0)
    """Evaluate every this many steps; 0: only before and after."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    samples: int = Field(default=1, ge=1)
    """Plays of each task, for pass@k; more than one need a temperature."""
    first_seed: int = Field(default=0, ge=0)
    """Evaluation tasks count up from here, whatever run.seed is."""

    @field_validator("episodes", mode="before")
    @classmethod
    def _name_all_choices(cls, given: object) -> object:
        if given == "all" or (type(given) is int and given >= 0):
            return given
        raise ValueError(f"{given!r} given; expected 'all' or a number of episodes from 0.")

    @model_validator(mode="after")
    def _draw_what_is_played_again(self) -> EvalSettings:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples: {self.samples} given with temperature 0, which plays a task the same way again. "
                "Set eval.temperature above 0, or leave samples at 1."
            )
        return self

    @property
    def is_wanted(self) -> bool:
        """Whether anything is evaluated."""
        return self.episodes != 0


class MixedEnv(Settings):
    """A further environment whose groups play in the same rollout and are learnt from in the same batch."""

    groups: PositiveInt = 4
    """Its tasks per rollout, beside rollout.groups."""
    max_turns: PositiveInt = 1
    """Most replies of the model in one of its episodes."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one of its episodes."""
    env: EnvSettings
    """Which world, with its own settings."""
    context: ContextSettings = ContextSettings()
    """How the model is talked to there."""


class MixSettings(Settings):
    """Environments beside `env`, each under a tag of its own: `mix: {questions: {groups: 4, env: {…}}}`."""

    def by_tag(self) -> dict[str, MixedEnv]:
        return {tag: getattr(self, tag) for tag in type(self).model_fields}


class TinySettings(Settings):
    """The default model: a small Llama-style network with a tokenizer made from the environment's own text."""

    hidden_size: PositiveInt = 128
    """Width of the network."""
    num_layers: PositiveInt = 2
    """Transformer layers."""
    num_heads: PositiveInt = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 384
    """Width inside the feed-forward layers."""
    vocab_size: int = Field(default=512, ge=300)
    """Upper bound; 256 byte symbols and the special tokens are always in."""
    cut: Literal["space", "words"] = "space"
    """What a token never crosses: white space alone, so that a cell such as Pb2 may be one token; or also the ends of
    words, signs and single digits, so that a name is spelled alike wherever it stands and can be copied."""
    max_positions: PositiveInt = 2048
    """Longest sequence the network can read."""

    @model_validator(mode="after")
    def _check_heads(self) -> TinySettings:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads = {self.num_heads} does not divide hidden_size = {self.hidden_size}")
        return self


class NoLora(Settings):
    type: Literal["none"] = "none"
    """All weights are trained."""


class Lora(Settings):
    type: Literal["lora"]
    """Train low-rank matrices beside the frozen weights, of the actor and of a critic that is a model."""
    rank: PositiveInt = 8
    """Inner width of the matrices."""
    alpha: PositiveFloat = 16.0
    """Their product is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Names of the linear layers that are adapted, such as [q_proj, v_proj]; all: every one but the output layer."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _check_target_modules(cls, given: object) -> object:
        is_list = isinstance(given, list) and bool(given) and all(isinstance(name, str) and name for name in given)
        if given != "all-linear" and not is_list:
            raise ValueError(f"{given!r} given; expected 'all-linear' or a list of names, such as [q_proj, v_proj]")
        return given


class ModelSettings(Settings):
    path: str = "tiny"
    """'tiny' for the built-in small model, 'smollm2', a Hugging Face folder, a GGUF file, or a hub name."""
    tiny: TinySettings = TinySettings()
    """Sizes of the built-in model."""
    lora: NoLora | Lora = Field(default=NoLora(), discriminator="type")
    dtype: Literal["float32", "bfloat16"] = "float32"
    """With bfloat16 the learner computes in it and keeps what it trains in float32; engine, reference and the frozen
    weights beside adapters are held in it."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Keep only the inputs of each layer for the backward pass and compute the rest again: less memory, more time.
    auto: for a micro-batch whose activations would take more than 450 MB, on a GPU a quarter of its memory."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return {} if self.path == "tiny" else self.idle("tiny", why=f"when {path}.path is not 'tiny'")


class ReportSettings(Settings):
    checkpoint_every: int = Field(default=0, ge=0)
    """Save every this many steps; 0: only by time and at the end."""
    checkpoint_minutes: float = Field(default=2.0, ge=0)
    """Save also after the step in which the last checkpoint becomes this old, and 20 times as old as it took to write;
    only the newest of these is kept; 0: never."""
    trajectories_per_step: int = Field(default=4, ge=0)
    """How many are written to trajectories/ each step, tokens included."""
    tokens: Literal["all", "none"] | PositiveInt = 200_000
    """How much of each update goes into the learning record: everything, nothing, or whole groups with at most this
    many tokens."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    trackers: list[str] = Field(default=[])
    """Where metrics go as well: `wandb`, `mlflow`, `swanlab`, `trackio`, or a sink of your own as
    `package.module:Class`."""
    callbacks: list[str] = Field(default=[])
    """Classes that hear of every stage, `package.module:Class` each."""

    @field_validator("tokens", mode="before")
    @classmethod
    def _name_all_choices(cls, given: object) -> object:
        if given in ("all", "none") or (type(given) is int and given > 0):
            return given
        raise ValueError(f"{given!r} given; expected 'all', 'none' or a number of tokens above 0.")


class NoIsolation(Settings):
    type: Literal["none"] = "none"
    """Environments live in the process of the run."""


class ProcessIsolation(Settings):
    type: Literal["process"]
    """Every environment lives in a process of its own: one that hangs, crashes or leaks costs one episode."""
    time_limit_s: PositiveFloat = 30.0
    """Longest call; a process that takes longer is ended and its episode fails."""
    max_memory_mb: PositiveInt | None = None
    """What an environment may take beyond its imports; null: no limit."""
    python: str | None = None
    """The program of another Python that environments run under, such as `.venv-envs/bin/python`; null: this one. It
    needs numpy, pydantic and what the environment needs."""


class RayIsolation(Settings):
    type: Literal["ray"]
    """Every environment lives in a Ray actor, on any machine of the cluster: for environments that are heavy. It needs
    cluster.type 'ray'."""
    time_limit_s: PositiveFloat = 30.0
    """Longest call; an actor that takes longer is ended and its episode fails."""
    cpus: PositiveFloat = 1.0
    """Cores that Ray sets aside for each environment, beside those of the explorer."""


class RolloutSettings(Settings):
    groups: PositiveInt = 8
    """Tasks per rollout."""
    group_size: PositiveInt = 16
    """Sibling trajectories per task."""
    max_turns: PositiveInt = 5
    """Most replies of the model in one episode."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one episode; null: no limit beside max_turns."""
    workflow: str = "environment"
    """A registered workflow or 'package.module:Class'."""
    workflow_args: dict[str, str | int | float | bool | list[str] | None] = Field(default={})
    """What a workflow asks for itself, such as max_env_steps; it finds them in `self.task.workflow_args`."""
    max_concurrent: PositiveInt | None = None
    """Most episodes at the same time; null: all of a rollout."""
    episode_timeout_s: PositiveFloat | None = None
    """Longest episode; one that takes longer is ended and counts as failed. Environments of your own and of other
    packages are then called in threads: a call that hangs is left behind and counted (rollout/left_behind). Adapted
    ones (`function:`, `gymnasium:` and the like) take turns, because they share the global random generators; one that
    hangs fails the others, which name it. rollout.isolation.type=process keeps them apart. Null: no limit."""
    max_retries: int = Field(default=0, ge=0)
    """How often an episode that failed is played again, in a fresh environment."""
    temperature: PositiveFloat = 1.0
    """Of sampling while exploring; the learner scores tokens at the same temperature."""
    invalid_penalty: float = Field(default=-0.1, le=0)
    """Added to the reward of a turn whose answer has the wrong format or an action the environment does not know."""
    first_seed: int = Field(default=10_000, ge=0)
    """Task seeds count up from here, shifted by run.seed."""
    isolation: NoIsolation | ProcessIsolation | RayIsolation = Field(default=NoIsolation(), discriminator="type")

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.workflow != "environment":
            return {}
        return self.idle("workflow_args", why=f"with {path}.workflow 'environment'")


class RunSettings(Settings):
    seed: int = Field(default=0, ge=0)
    """Everything random in a run comes from this number."""
    mode: Literal["both", "explore", "train", "eval"] = "both"
    """What this process does: explore and train; only play and store; only learn from what is stored; or evaluate the
    newest policy of --run-dir, or `model.path`."""
    root: str = "runs"
    """Where new run directories are made."""


SyncStyle = Literal["fixed", "dynamic_by_explorer", "dynamic_by_trainer"]


class SyncSettings(Settings):
    style: SyncStyle = "fixed"
    """When new weights reach the explorer: before fixed rollouts; when it asks; or when the trainer has made enough
    updates."""
    interval: PositiveInt = 1
    """Updates between two publications, or rollouts after which the explorer asks."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Most updates that the weights of a rollout may be behind when it begins; 0 is the serial loop. Null: as many as
    `interval` and `offset` need, or one more than the serial loop; without a bound where `run.mode` is 'explore'."""
    offset: int | None = Field(default=None, ge=0)
    """Rollouts that the explorer is ahead in the style 'fixed'. Null: as many as `max_staleness` allows."""
    timeout_s: PositiveFloat = 1800.0
    """Longest wait of explorer and trainer for each other; with a cluster also for news of any part of it."""
    max_probe_gap: PositiveFloat | Literal["auto"] = "auto"
    """Largest mean distance, in nats per token, between what engine and learner make of one text after a sync; more
    stops the run. auto: 0.02 with model.dtype float32, 0.2 with bfloat16, and 20 times the rounding of the first sync
    where that is less."""
    method: str = "memory"
    """How weights travel: inside the process, or with `checkpoint` as files in the run directory, for processes of
    their own; or 'package.module:Class'."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if run.run.mode != "both":
            return self.idle("max_probe_gap", why=f"with run.mode '{run.run.mode}': engine and learner do not meet")
        idle = {}
        if run.engine.type in ("local", "scripted"):
            idle = self.idle(
                "max_probe_gap", why=f"with engine.type '{run.engine.type}': it holds no weights elsewhere"
            )
        if run.loop.type == "serial":
            names = ["style", "max_staleness", "offset", "method"]
            if run.cluster.type == "none":
                names.append("timeout_s")
            return idle | self.idle(*names, why="with loop.type 'serial'")
        if self.style != "fixed":
            idle |= self.idle("offset", why=f"with {path}.style '{self.style}'")
        if run.cluster.type != "none":
            idle |= self.idle("method", why=f"with cluster.type '{run.cluster.type}'")
        return idle


class TaskSettings(Settings):
    num_tasks: PositiveInt | None = None
    """How many training tasks there are, for each environment; null: new ones for ever, or with `epochs` as many as the
    environment has."""
    epochs: PositiveInt | None = None
    """Go this many times through the training tasks of the main environment: `learn.steps` then is that many rollouts,
    whatever stands beside it; a `learn.steps` that overrides a file counts in place of its epochs. null: `learn.steps`
    counts."""
    selector: Literal["sequential", "random", "difficulty"] = "sequential"
    """Which of them come next: in order, shuffled anew in each epoch, or those whose success is likely to be near
    `target_success`."""
    target_success: float = Field(default=0.5, ge=0, le=1)
    """Of the selector `difficulty`: the share of successes that teaches most."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = {}
        if self.num_tasks is None and self.epochs is None and self.selector != "sequential":
            idle["selector"] = f"'{self.selector}' has no effect without {path}.num_tasks: no task comes twice"
        if self.selector != "difficulty":
            idle |= self.idle("target_success", why=f"with {path}.selector '{self.selector}'")
        return idle


class NoWarmStart(Settings):
    type: Literal["none"] = "none"
    """Reinforcement learning starts from the model as it is."""


class ImitationSettings(Settings):
    """How demonstrations are imitated, whoever gives them."""

    episodes: PositiveInt = 300
    """Demonstrations, on training layouts that no rollout uses."""
    steps: PositiveInt = 60
    """Optimizer steps."""
    batch_rows: PositiveInt = 256
    """Rows (segments) per optimizer step."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the imitation."""


class OracleWarmStart(ImitationSettings):
    type: Literal["oracle"]
    """Imitate the environment's oracle on training tasks before reinforcement learning starts."""


class EndpointWarmStart(EndpointSettings, ImitationSettings):
    type: Literal["endpoint"]
    """Imitate a model behind an OpenAI-compatible endpoint, which plays training tasks greedily."""
    keep: Literal["successes", "all"] = "successes"
    """Which of its episodes are imitated: those that succeeded, or all that were played to their end."""


class WatchSettings(Settings):
    window: PositiveInt = 10
    """Steps at the start of a run that say what is usual, and newest steps over which success is smoothed."""
    patience: PositiveInt = 10
    """Steps in a row that a sign must last before it is told, and be gone before it can be told again."""
    stop: Literal["never", "collapse"] = "never"
    """Only tell; or keep checkpoints to go back to, and end a collapsed run with the one from before its trouble."""
    min_spread_share: float = Field(default=0.1, gt=0, lt=1)
    """Least spread of returns inside groups, as a share of its median in the first `window` steps."""
    max_repetition: float = Field(default=0.5, gt=0, lt=1)
    """Largest share of repeated 3-grams inside replies."""
    max_grad_ratio: float = Field(default=10.0, gt=1)
    """Largest gradient norm, as a multiple of its median over the `window` steps before."""
    max_clip_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Largest share of tokens whose ratio the loss clips."""
    max_kl: PositiveFloat = 0.2
    """Largest distance, per token, between the policy that sampled and the one that is trained."""
    max_behavior_gap: PositiveFloat = 0.2
    """Largest mean distance, per token, between the log-probs of the engine that sampled and of the learner."""
    max_reference_kl: PositiveFloat = 5.0
    """Largest distance, per token, between the policy and its frozen reference."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = {}
        if run.rollout.group_size == 1:
            idle |= self.idle("min_spread_share", why="with rollout.group_size 1: nobody has siblings")
        if run.learn.kl.type == "none":
            idle |= self.idle("max_reference_kl", why="with learn.kl.type 'none': there is no reference")
        return idle


class TurnwiseSettings(Settings):
    """The whole configuration of a run."""

    recipe: str = ""
    """How the run is called; by default the name of the recipe's file."""
    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    env: EnvSettings
    mix: MixSettings = MixSettings()
    tasks: TaskSettings = TaskSettings()
    context: ContextSettings = ContextSettings()
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    buffer: BufferSettings = Field(default_factory=BufferSettings)
    credit: AdvantageEstimator = Field(default_factory=lambda: ADVANTAGE_ESTIMATORS.parse({}))
    learn: LearnSettings = Field(default_factory=LearnSettings)
    audit: AuditSettings = AuditSettings()
    sync: SyncSettings = SyncSettings()
    loop: LoopSettings = LoopSettings()
    cluster: NoCluster | RayCluster = Field(default=NoCluster(), discriminator="type")
    warm_start: NoWarmStart | OracleWarmStart | EndpointWarmStart = Field(default=NoWarmStart(), discriminator="type")
    eval: EvalSettings = EvalSettings()
    report: ReportSettings = ReportSettings()
    watch: WatchSettings = WatchSettings()

    def envs(self) -> list[EnvSettings]:
        """Every environment of the run, the main one first."""
        return [self.env, *(other.env for other in self.mix.by_tag().values())]


_ENV = Choice(path="env", registry=ENVS, base=EnvSettings, methods=("reset", "step"), also_own=("train",))
CHOICES = (
    _ENV,
    Choice(
        path="engine",
        registry=ENGINES,
        base=EngineSettings,
        methods=("open", "generate", "release", "update_weights", "state", "close"),
    ),
    Choice(
        path="rollout",
        key="workflow",
        registry=WORKFLOWS,
        base=RolloutSettings,
        methods=("run",),
        takes_params=False,
        takes_functions=False,
    ),
    Choice(
        path="buffer",
        registry=BUFFERS,
        base=BufferSettings,
        methods=("open", "is_shared", "add", "take", "is_ready", "has_group", "__len__", "rewind"),
    ),
    Choice(path="buffer.priority", registry=PRIORITIES, base=GroupPriority),
    Choice(path="credit", registry=ADVANTAGE_ESTIMATORS, base=AdvantageEstimator, has_fixed_default=False),
    Choice(
        path="learn",
        registry=LEARNERS,
        base=LearnSettings,
        methods=("open", "annotate", "step", "imitate", "supervise", "weights", "save_state", "load_state"),
    ),
    Choice(path="learn.loss", registry=POLICY_LOSSES, base=PolicyLoss),
    Choice(
        path="sync",
        key="method",
        registry=TRANSPORTS,
        base=SyncSettings,
        methods=("open", "is_shared", "post", "newest", "fetch", "request", "requested"),
    ),
    Choice(path="loop", registry=LOOPS, base=LoopSettings, methods=()),
)
"""In pipeline order. `mix.TAG.env` is chosen as `env` is."""


def made_for(raw: dict[str, Any]) -> type[TurnwiseSettings]:
    """The settings class for the choices of `raw`, in which choices that it does not make are filled in."""
    made = _classes(CHOICES, raw)
    outermost = {path: section_class for path, section_class in made.items() if "." not in path}
    return _compose((TurnwiseSettings,), (*outermost.items(), ("mix", _mix_class(_section(raw, "mix")))))


def read_section(path: str, words: dict[str, Any]) -> Any:
    """One section with its choices, from what `model_dump` said of it: for a process that needs no other."""
    raw = {path: words}
    choice = choice_at(path)
    if choice is not None and isinstance(choice.registry, Registry):
        return choice.registry.parse(words)
    choices = [choice for choice in CHOICES if choice.path == path or choice.path.startswith(f"{path}.")]
    return _classes(choices, raw)[path].model_validate(raw[path])


def _classes(choices: Iterable[Choice], raw: dict[str, Any]) -> dict[str, type[Settings]]:
    """Their sections, by path; inner ones first, for they stand in the outer ones."""
    made: dict[str, type[Settings]] = {}
    for choice in sorted(choices, key=lambda choice: -choice.path.count(".")):
        if choice.is_component:
            continue
        section = reduce(_section, choice.path.split("."), raw)
        inside = {path.rpartition(".")[2]: made[path] for path in made if path.rpartition(".")[0] == choice.path}
        made[choice.path] = _section_class(choice, section, choice.path, inside)
    return made


def _section_class(
    choice: Choice, section: dict[str, Any], path: str, inside: Mapping[str, type[Settings]]
) -> type[Settings]:
    if choice.field.is_required() and choice.key not in section:
        known = ", ".join(sorted(choice.registry))
        raise ConfigError(f"{path}.{choice.key} is missing. Choose an {choice.registry.kind}: {known}.")
    name = _spell_as_registered(choice, section)
    try:
        params = params_class(choice, name, path) if choice.takes_params else Settings
    except UntrustedCodeError:
        # Which keys it has is known to its class alone: they are left out with it.
        params = Settings
        for key in section.keys() - choice.base.model_fields.keys():
            del section[key]
    bases = (choice.base,) if params is Settings else (params, choice.base)
    return _compose(bases, tuple(inside.items()), choice.key)


def _mix_class(mix: dict[str, Any]) -> type[MixSettings]:
    """One field for each tag, typed by the environment chosen there."""
    tags = {}
    for tag in mix:
        env = _section(_section(mix, tag, f"mix.{tag}"), "env", f"mix.{tag}.env")
        tags[tag] = _compose((MixedEnv,), (("env", _section_class(_ENV, env, f"mix.{tag}.env", {})),))
    return _compose((MixSettings,), tuple(tags.items()))


def without_switched(base: dict[str, Any], new: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The base without the keys of choices that `new` makes anew: what is chosen instead has other keys."""
    kept = dict(base)
    for key in base.keys() & new.keys():
        old, change = base[key], new[key]
        if isinstance(old, dict) and isinstance(change, dict):
            inner = f"{path}.{key}" if path else key
            kept[key] = without_switched(_keys_that_stay(old, change, inner), change, inner)
    return kept


def _keys_that_stay(old: dict[str, Any], change: dict[str, Any], path: str) -> dict[str, Any]:
    choice = choice_at(path)
    if choice is None:
        is_switched = "type" in old and "type" in change and old["type"] != change["type"]
        return {} if is_switched else old
    # Without a fixed default, keys that were given without a choice belong to whatever is chosen in the end.
    was_chosen = choice.has_fixed_default or choice.key in old
    names = [given.get(choice.key, choice.field.default) for given in (old, change)]
    chosen = [choice.registry.resolve_alias(name).name if isinstance(name, str) else name for name in names]
    is_switched = choice.key in change and chosen[0] != chosen[1]
    if not (was_chosen and is_switched and choice.takes_params):
        return old
    section_keys = choice.base.model_fields.keys() - set(choice.also_own)
    return {key: value for key, value in old.items() if key in section_keys}


def choice_at(path: str) -> Choice | None:
    """What is chosen in the section at a path; None where nothing is."""
    is_mixed = path.startswith("mix.") and path.endswith(".env")
    return _ENV if is_mixed else next((choice for choice in CHOICES if choice.path == path), None)


def chosen_in(settings: TurnwiseSettings) -> Iterator[tuple[str, Choice, str]]:
    """Every choice of a run: the config path of the key, and what is chosen there."""
    for choice in CHOICES:
        section: Any = reduce(getattr, choice.path.split("."), settings)
        yield f"{choice.path}.{choice.key}", choice, getattr(section, choice.key)
    for tag, other in settings.mix.by_tag().items():
        yield f"mix.{tag}.env.{_ENV.key}", _ENV, other.env.type
