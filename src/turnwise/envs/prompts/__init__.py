"""Single prompts: where they come from, how they are split, and the one-turn world around them."""

from turnwise.envs.prompts.dataset import Dataset
from turnwise.envs.prompts.env import Prompts

__all__ = ["Dataset", "Prompts"]
