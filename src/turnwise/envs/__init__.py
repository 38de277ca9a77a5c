"""Worlds of text: a task becomes a world that answers actions."""
