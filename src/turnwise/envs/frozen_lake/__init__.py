"""A walk over ice with holes: settings, random layouts, their solutions, and the game itself."""

from turnwise.envs.frozen_lake.env import FrozenLake

__all__ = ["FrozenLake"]
