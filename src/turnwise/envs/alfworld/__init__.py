"""Household tasks in text: the original game files or generated rooms, their rules, plans, and the game itself."""

from turnwise.envs.alfworld.env import AlfWorld

__all__ = ["AlfWorld"]
