"""The name of a model becomes a folder that can be loaded; the built-in model is made on first use."""

from __future__ import annotations

from turnwise.app.sample_texts import draw_sample_texts
from turnwise.config.schema import TurnwiseSettings
from turnwise.learn.models import cache_folder
from turnwise.learn.tiny_model import tiny_model_folder
from turnwise.rollout.worlds import worlds_of


def resolve_model(settings: TurnwiseSettings) -> str:
    """The model's folder or hub name; the built-in model is made on first use."""
    if settings.model.path != "tiny":
        return settings.model.path
    texts = [text for world in worlds_of(settings) for text in draw_sample_texts(world)]
    folder = tiny_model_folder(
        cache_folder() / "models",
        settings=settings.model.tiny,
        seed=settings.run.seed,
        sample_texts=texts,
    )
    return str(folder)
