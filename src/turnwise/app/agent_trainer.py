"""Train a class of agents: `AgentTrainer(config, agent_cls=MyAgent).fit()`.

A front for people who bring their own agents; behind it is the same session as behind `turnwise train`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from turnwise.app.models import resolve_model
from turnwise.app.run import Run, train
from turnwise.config.checks import check_settings
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, WorkflowError
from turnwise.experience.build import build_experiences
from turnwise.loop.build import build_train
from turnwise.loop.parts import TrainParts
from turnwise.rollout.agents import BaseAgent, SyncMultiTurnRollout


class AgentTrainer:
    """Multi-turn training where each agent owns its environment and history.

    `init_workers` builds the models and `multi_turn_rollout`, which can be tried before anything is trained; `fit`
    trains and returns the finished Run.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, object] = "agent_class",
        overrides: Mapping[str, object] | None = None,
        *,
        agent_cls: type[BaseAgent],
        tokenizer: PreTrainedTokenizerBase | None = None,
        run_dir: str | Path | None = None,
        console: Console | None = None,
    ) -> None:
        """`config` and `overrides` are as in `train`. `tokenizer`, where given, must be the model's own."""
        self.agent_cls = agent_cls
        self.config = config
        self.overrides = {
            **(overrides or {}),
            "rollout.workflow": "agent",
            "rollout.workflow_args.agent_cls": f"{agent_cls.__module__}:{agent_cls.__qualname__}",
        }
        self.settings = load_settings(config, self.overrides)
        check_settings(self.settings)
        self._tokenizer = tokenizer
        self._run_dir = run_dir
        self._console = console
        self._rollout: SyncMultiTurnRollout | None = None

    @property
    def multi_turn_rollout(self) -> SyncMultiTurnRollout:
        if self._rollout is None:
            raise WorkflowError("there is no multi_turn_rollout yet; call init_workers() first.")
        return self._rollout

    def init_workers(self) -> None:
        """Load the models and check that everything fits together."""
        parts = build_train(self.settings, resolve_model(self.settings))
        if self._tokenizer is not None:
            _check_tokenizer(self._tokenizer, parts)
        self._rollout = SyncMultiTurnRollout(
            parts.proxy, lambda: parts.tasks.take(parts.groups_per_rollout), build_experiences
        )

    def fit(self) -> Run:
        """Train to the end; the run's directory holds everything that came out."""
        return train(self.config, self.overrides, run_dir=self._run_dir, console=self._console)


def _check_tokenizer(given: Any, parts: TrainParts) -> None:
    """Tokens are exact only in the model's own vocabulary."""
    if given.get_vocab() != parts.tokenizer.get_vocab():
        raise ConfigError(
            f"tokenizer: a vocabulary of {len(given.get_vocab())} tokens was given, and it is not that of the model "
            f"'{parts.settings.model.path}'. Leave tokenizer out, or load it from the model's folder."
        )
