"""Token ids come in; the text that each of them stands for goes out, from the tokenizer that the run keeps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from turnwise.view.run_files import RunFiles, setting

_TOKENIZER = "tokenizer.json"


class TokenTexts:
    """The texts of single tokens. Without a tokenizer a token is shown by its number."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    @classmethod
    def open(cls, run: RunFiles) -> TokenTexts:
        return cls(next((found for file in _places(run) if (found := _load(file)) is not None), None))

    @property
    def is_known(self) -> bool:
        return self._tokenizer is not None

    def of(self, token_id: int) -> str:
        if token_id not in self._known:
            self._known[token_id] = self._decode(token_id)
        return self._known[token_id]

    def of_all(self, token_ids: Iterable[int]) -> list[str]:
        return [self.of(token_id) for token_id in token_ids]

    def _decode(self, token_id: int) -> str:
        if self._tokenizer is None:
            return f"#{token_id}"
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text or self._tokenizer.id_to_token(token_id) or f"#{token_id}"


def _places(run: RunFiles) -> Iterable[Path]:
    """The run's own, those of its checkpoints, and that of a model which was given as a folder."""
    yield run.directory.tokenizer
    for step in reversed(run.directory.checkpoint_steps()):
        yield run.directory.step_checkpoint(step) / "policy" / _TOKENIZER
    yield Path(str(setting(run.settings, "model.path", ""))) / _TOKENIZER


def _load(file: Path) -> Tokenizer | None:
    if not file.is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001 - the package raises bare exceptions; without it a token has its number
        return None
