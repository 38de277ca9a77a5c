"""The words for wrong settings of the model."""

from __future__ import annotations

import pytest

from turnwise.config.load import dump_settings, load_settings
from turnwise.config.schema import Lora
from turnwise.errors import ConfigError

LAKE = {"env": {"type": "frozen_lake"}}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.lora={type: lora, rank: 0}", "model.lora.rank: 0 given; expected greater than 0."),
        ("model.lora={type: lora, alpha: 0}", "model.lora.alpha: 0 given; expected greater than 0."),
        ("model.lora={type: dora}", "model.lora.type: 'dora' given; expected one of 'none', 'lora'."),
        ("model.lora={type: lora, dropout: 0.1}", "model.lora.dropout: unknown setting."),
        (
            "model.lora={type: lora, target_modules: q_proj}",
            "model.lora.target_modules: 'q_proj' given; expected 'all-linear' or a list of names, such as [q_proj, ",
        ),
        ("model.lora={type: lora, target_modules: []}", "model.lora.target_modules: [] given; expected 'all-linear'"),
        ("model.lora={type: lora, target_modules: [3]}", "model.lora.target_modules: [3] given; expected"),
        ("model.dtype=float16", "model.dtype: 'float16' given; expected 'float32' or 'bfloat16'."),
    ],
)
def test_a_wrong_setting_is_explained(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(LAKE, [override])
    assert words in str(caught.value)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
def test_settings_survive_the_run_directory(tmp_path, targets) -> None:  # type: ignore[no-untyped-def]
    lora = {"type": "lora", "rank": 4, "alpha": 8, "target_modules": targets}
    settings = load_settings({**LAKE, "model": {"lora": lora, "dtype": "bfloat16", "gradient_checkpointing": True}})
    assert settings.model.lora == Lora(type="lora", rank=4, alpha=8.0, target_modules=targets)
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert load_settings(str(tmp_path / "config.yaml")).model == settings.model
