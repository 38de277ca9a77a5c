"""`credit`: how rewards become advantages. The settings of a rule stand beside it, in the room `credit`."""

from __future__ import annotations

from turnwise.config.settings import Settings


class CreditSettings(Settings):
    type: str = "grpo"
    """A registered credit rule or 'package.module:Class'. Not given, it is 'gae' with a critic (`learn.critic`), 'grpo'
    without one, and 'reinforce_pp' where also `rollout.group_size` is 1."""
