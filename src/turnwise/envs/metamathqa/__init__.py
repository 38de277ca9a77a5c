"""Mathematics with several attempts: problems from files or made from seeds, graded as mathematics."""

from turnwise.envs.metamathqa.env import MetaMathQA

__all__ = ["MetaMathQA"]
