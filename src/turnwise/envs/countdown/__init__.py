"""Reaching a number with others: settings, random puzzles or rows of a file, exact solutions, grading, and the game."""

from turnwise.envs.countdown.env import Countdown

__all__ = ["Countdown"]
