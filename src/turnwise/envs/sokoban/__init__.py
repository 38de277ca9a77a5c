"""Pushing boxes onto targets: settings, random solvable levels, their exact solutions, and the game itself."""

from turnwise.envs.sokoban.env import Sokoban

__all__ = ["Sokoban"]
