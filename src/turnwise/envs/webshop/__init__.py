"""A shop on the web: products and goals, search, pages, the reward of a purchase, and the game itself."""

from turnwise.envs.webshop.env import WebShop

__all__ = ["WebShop"]
