"""Every part that a config can name, written outside the package: read it top to bottom, take what you need.

An environment, a workflow, an engine, a buffer, a credit rule, a loss, a learner, a weight transport and a loop, in the
order in which data flows; each does something of its own in as few lines as it takes. `plug_ins.yaml` names them:

    PYTHONPATH=examples turnwise train --config examples/plug_ins.yaml

A class with settings of its own lists them in `Params`; in the YAML they stand beside its name, and `settings` is that
whole section; its `idle_settings` names those that were changed and have no effect here. `turnwise/protocols.py` says
what each part must do; `docs/custom_components.md` has more, and how to run the contract tests over this file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from turnwise import BaseEnv, Experience, types
from turnwise.chat_types import Message
from turnwise.config.kinds import AdvantageEstimator
from turnwise.config.settings import Settings
from turnwise.context.answer import parse_answer
from turnwise.context.recorder import Response
from turnwise.credit.layout import flatten_experiences, make_samples
from turnwise.credit.reference import TokenTrajectory
from turnwise.deps import BufferSite, EngineSite, LearnerSite, TransportSite
from turnwise.engine.sampling import draw_uniforms, sample_tokens
from turnwise.errors import ConfigError
from turnwise.experience.build import build_experiences
from turnwise.loop.components import TrainComponents
from turnwise.loop.serial import update_policy
from turnwise.loop.step import collect, describe_step
from turnwise.protocols import PolicyVersion, SFTConfig, Weights
from turnwise.rollout.workflow import EnvironmentWorkflow

# --- 1. a task becomes a world ---------------------------------------------------------------------------------------


class EvenOrOdd(BaseEnv):
    """`env.type`: one number, one question. A word that means nothing here changes nothing."""

    class Params(Settings):
        highest: int = Field(default=99, ge=1)
        """Numbers from 0 to this one are shown."""

    has_oracle = True
    action_names = ("even", "odd")
    instructions = "Say whether the number is even or odd."

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        self._number, self._phase = (seed or 0) % (self.params.highest + 1), "playing"
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        is_valid, is_right = action in self.action_names, action == self.oracle()
        self._phase = "over" if is_valid else "playing"
        info = {"success": is_right, "action_is_valid": is_valid, "action_is_effective": is_valid}
        return self.render(), float(is_right), is_valid, info

    def render(self) -> str:
        return f"The number is {self._number}."

    def oracle(self) -> str:
        return self.action_names[self._number % 2]


# --- 2. the turn loop ------------------------------------------------------------------------------------------------


class AskTwice(EnvironmentWorkflow):
    """`rollout.workflow`: plays the environment; a reply that was not understood is asked for once more.

    Both replies are trained, and the second goes on over the tokens of the first.
    """

    arg_names = frozenset({"second_question"})

    async def answer(self, messages: list[Message]) -> Response:
        reply = await super().answer(messages)
        if parse_answer(reply.response_text, self.task.context.answer).is_well_formed:
            return reply
        question = str(self.task.workflow_args.get("second_question", "Once more, in the form that I asked for."))
        again = [
            *messages,
            Message("assistant", reply.response_text),
            Message("user", question),
        ]
        return await super().answer(again)


# --- 3. tokens become tokens -----------------------------------------------------------------------------------------


class OneByOneEngine:
    """`engine.type`: a model of its own, and a plain forward pass over the whole sequence for every token."""

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> OneByOneEngine:
        model = AutoModelForCausalLM.from_pretrained(site.model_path, dtype=getattr(torch, site.dtype))
        return cls(model.eval(), site.template.stop_ids, site.policy_version)

    def __init__(self, model: torch.nn.Module, stop_ids: frozenset[int], policy_version: int) -> None:
        self._model, self._stop_ids, self.policy_version = model, stop_ids, policy_version
        self._num_passes = 0

    async def generate(self, request: types.GenerateRequest) -> types.Completion:
        # Others have their turn first. From here on nothing waits, so weights cannot change under the reply.
        await asyncio.sleep(0)
        ids, logprobs = request.prompt_ids.tolist(), []
        for uniform in draw_uniforms(request.seed, request.sampling.max_new_tokens):
            token, logprob = self._sample(ids, request, uniform)
            ids.append(token)
            logprobs.append(logprob)
            if token in self._stop_ids:
                break
        return types.Completion(
            token_ids=np.array(ids[len(request.prompt_ids) :], dtype=np.int32),
            behavior_logprobs=np.array(logprobs, dtype=np.float32),
            finish_reason=types.FinishReason.STOP if ids[-1] in self._stop_ids else types.FinishReason.LENGTH,
            policy_version=self.policy_version,
        )

    @torch.inference_mode()
    def _sample(self, ids: list[int], request: types.GenerateRequest, uniform: float) -> tuple[int, float]:
        self._num_passes += 1
        logits = self._model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1].float()
        token, logprob = sample_tokens(logits, [request.sampling], torch.tensor([uniform], dtype=torch.float64))
        return int(token), float(logprob)

    def release(self, cache_key: str) -> None:
        """Nothing is kept between requests."""

    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        self._model.load_state_dict(dict(weights))
        self.policy_version = policy_version

    def state(self) -> types.Metrics:
        return {"running": 0.0, "waiting": 0.0, "passes": float(self._num_passes)}

    async def close(self) -> None:
        """Nothing is held that does not go with the object."""


# --- 4. records wait -------------------------------------------------------------------------------------------------


class ListBuffer:
    """`buffer.type`: a plain list of groups."""

    class Params(Settings):
        is_newest_first: bool = False
        """Whether the group that came last is learnt from first."""

        def idle_settings(self, path: str, run: Any) -> dict[str, str]:
            return self.idle("unit", "capacity", "priority", "reuse_cooldown", why="with ListBuffer")

    is_shared = False

    @classmethod
    def open(cls, settings: Any, site: BufferSite) -> ListBuffer:
        return cls(settings.train_batch_size, -1 if settings.is_newest_first else 0)

    def __init__(self, batch_size: int | None, place: int) -> None:
        self._batch_size, self._place = batch_size, place
        self._known: set[str] = set()
        self._waiting: list[list[Experience]] = []
        self.num_dropped = 0

    def add(self, experiences: Sequence[Experience]) -> None:
        groups: dict[str, list[Experience]] = {}
        for experience in experiences:
            groups.setdefault(experience.id.trajectory.group, []).append(experience)
        self._waiting += [group for name, group in groups.items() if name not in self._known]
        self._known |= groups.keys()

    def take(self, step: int) -> list[Experience]:
        taken: list[Experience] = []
        while self._waiting and (not taken or self._fits(taken, self._waiting[self._place])):
            taken += self._waiting.pop(self._place)
        return taken

    def _fits(self, taken: list[Experience], group: list[Experience]) -> bool:
        return self._batch_size is None or len(taken) + len(group) <= self._batch_size

    def is_ready(self, step: int) -> bool:
        return len(self) >= (self._batch_size or 1)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._known

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def rewind(self, step: int, *, plays_again: bool) -> None:
        """A new process has an empty list: there is nothing to take back."""


# --- 5. rewards become advantages ------------------------------------------------------------------------------------


class MedianBaseline(AdvantageEstimator):
    """`credit.type`: the return of a trajectory minus the median of its group."""

    needs_groups = True
    scale: float = Field(default=1.0, gt=0)
    """Factor on every advantage."""

    def __call__(self, experiences: Sequence[Experience], annotations: types.Annotations) -> list[types.Sample]:
        flat = flatten_experiences(experiences, annotations)
        returns, groups = flat.layout.sum_turns(flat.turn_rewards), flat.group_of_trajectory
        medians = np.array([np.median(returns[groups == group]) for group in groups])
        per_token = flat.layout.trajectories_to_tokens(self.scale * (returns - medians))
        return make_samples(flat, per_token, per_token, annotations)

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        """What the audit compares one group of each batch with."""
        middle = median(trajectory.total for trajectory in trajectories)
        return [[self.scale * (t.total - middle)] * len(t.turns) for t in trajectories]


# --- 6. samples become gradients -------------------------------------------------------------------------------------


class PulledPolicyGradient:
    """`learn.loss.type`: the policy gradient with a spring to the sampling policy in place of a clip."""

    class Params(Settings):
        pull: float = Field(default=0.1, ge=0)
        """How strongly a token is pulled back to the log-prob that it was sampled with."""

    def __init__(self, settings: Any) -> None:
        self._pull = settings.pull

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moved = policy_logprobs - behavior_logprobs
        spring = 0.5 * self._pull * moved.square()
        return spring - advantages * policy_logprobs, {"ratio": moved.detach().exp(), "spring": spring.detach()}


class SgdLearner:
    """`learn.type`: plain gradient descent, row by row; of the section `learn` it reads `epochs` and `optim.lr`."""

    class Params(Settings):
        momentum: float = Field(default=0.9, ge=0, lt=1)
        """What an optimizer step keeps of the one before."""

        def idle_settings(self, path: str, run: Any) -> dict[str, str]:
            unread = ("minibatches", "aggregation", "critic", "kl", "correction", "entropy_coef")
            return self.idle(*unread, why="with SgdLearner")

    @classmethod
    def open(cls, settings: Any, site: LearnerSite) -> SgdLearner:
        return cls(settings, site)

    def __init__(self, settings: Any, site: LearnerSite) -> None:
        self._epochs, self._loss, self._temperature = settings.epochs, site.loss, site.temperature
        self._model = AutoModelForCausalLM.from_pretrained(site.model_path, dtype=torch.float32).eval()
        parameters = self._model.parameters()
        self._optimizer = torch.optim.SGD(parameters, lr=settings.optim.lr, momentum=settings.momentum)
        self.policy_version = 0

    def annotate(self, experiences: Sequence[Experience]) -> types.Annotations:
        return types.Annotations()  # neither a critic nor a reference

    def step(self, batch: types.Batch) -> types.StepReport:
        num_tokens, total = int(batch.loss_mask.sum()), 0.0
        for _ in range(self._epochs):
            self._optimizer.zero_grad()
            for start, end in pairwise(batch.row_starts.tolist()):
                mask, turns = batch.loss_mask[start:end], torch.tensor(batch.turn_ids[start:end]).long()
                behavior, advantages = (torch.tensor(a[start:end]) for a in (batch.behavior_logprobs, batch.advantages))
                logprobs = self._score(batch.token_ids[start:end], mask)
                losses, _ = self._loss(logprobs, behavior[mask], advantages[mask], turns[mask])
                (losses.sum() / num_tokens).backward()
                total += float(losses.detach().sum()) / num_tokens
            self._optimizer.step()
        self.policy_version += 1
        return types.StepReport(policy_version=self.policy_version, metrics={"learn/policy_loss": total / self._epochs})

    def _score(self, token_ids: np.ndarray, mask: np.ndarray) -> Tensor:
        """The log-probs of the sampled tokens of a row, at the temperature they were sampled with."""
        ids = torch.tensor(token_ids).long()
        table = (self._model(input_ids=ids[None, :-1]).logits[0] / self._temperature).log_softmax(-1)
        return table.gather(1, ids[1:, None]).squeeze(1)[torch.tensor(mask[1:])]

    def imitate(
        self, demonstrations: Sequence[Experience], how: SFTConfig, on_step: Callable[[int, int], None]
    ) -> float:
        optimizer, dice, loss = torch.optim.AdamW(self._model.parameters(), lr=how.lr), np.random.default_rng(0), 0.0
        rows = [demonstration.segment for demonstration in demonstrations]
        for step in range(how.steps):
            optimizer.zero_grad()
            drawn = dice.choice(len(rows), size=min(how.batch_rows, len(rows)), replace=False)
            logprobs = torch.cat([self._score(rows[n].token_ids, rows[n].loss_mask) for n in drawn])
            (-logprobs.mean()).backward()
            optimizer.step()
            loss = -float(logprobs.detach().mean())
            on_step(step + 1, how.steps)
        return loss

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        raise ConfigError("learn.ptx: SgdLearner mixes no demonstrations into its updates. Set learn.ptx.type to none.")

    def weights(self) -> Weights:
        return self._model.state_dict()

    def save_state(self, folder: Path) -> None:
        self._model.save_pretrained(folder / "policy")
        state = {"optimizer": self._optimizer.state_dict(), "policy_version": self.policy_version}
        torch.save(state, folder / "sgd.pt")

    def load_state(self, folder: Path) -> None:
        saved = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
        self._model.load_state_dict(saved.state_dict())
        state = torch.load(folder / "sgd.pt", weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self.policy_version = state["policy_version"]


# --- 7. weights become the next policy -------------------------------------------------------------------------------


class OneFileTransport:
    """`sync.method`: the newest weights in one file, which says itself which weights they are."""

    class Params(Settings):
        file: str = Field(default="handed_over.safetensors", min_length=1)
        """Where weights lie, in the directory of the run."""

    is_shared = True

    @classmethod
    def open(cls, settings: Any, site: TransportSite) -> OneFileTransport:
        if site.run_path is None:
            raise ConfigError("sync.method: OneFileTransport needs the directory of a run to put its file in.")
        return cls(site.run_path / settings.file, site.ring)

    def __init__(self, file: Path, ring: Callable[[], None]) -> None:
        self._file, self._request, self._ring = file, file.with_suffix(".request"), ring

    def post(self, mark: PolicyVersion, weights: Weights) -> None:
        about = {"step": str(mark.step), "policy_version": str(mark.policy_version)}
        # Tied weights share memory, which the format refuses; and a reader must never see half a file.
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
        save_file(tensors, f"{self._file}.part", metadata=about)
        os.replace(f"{self._file}.part", self._file)
        self._ring()

    def newest(self) -> PolicyVersion | None:
        if not self._file.is_file():
            return None
        with safe_open(self._file, "pt") as file:
            return self._mark(file.metadata())

    def fetch(self) -> tuple[PolicyVersion, Weights]:
        with safe_open(self._file, "pt") as file:
            return self._mark(file.metadata()), {name: file.get_tensor(name) for name in file.offset_keys()}

    @staticmethod
    def _mark(about: dict[str, str]) -> PolicyVersion:
        return PolicyVersion(int(about["step"]), int(about["policy_version"]))

    def request(self, step: int) -> None:
        unfinished = self._request.with_suffix(".request.part")
        unfinished.write_text(str(step))
        os.replace(unfinished, self._request)
        self._ring()

    def requested(self) -> int | None:
        return int(self._request.read_text()) if self._request.is_file() else None


# --- 8. who runs when ------------------------------------------------------------------------------------------------


async def plain_loop(run: TrainComponents, watch: Any, *, start_step: int, on_step: Callable[..., Any]) -> None:
    """`loop.type`: the serial loop at its barest; the engine gets new weights at once, so no transport is asked."""
    for step in range(start_step + 1, run.settings.learn.steps + 1):
        rollout = await collect(run.explorer, step, run.hooks)
        run.buffer.add(build_experiences(rollout.kept))
        result = update_policy(run.trainer, run.buffer.take(step), run.hooks)
        await run.publish(result.policy_version)
        await on_step(describe_step(step, rollout, result, run))
