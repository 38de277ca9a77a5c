"""`turnwise convert`: a config file of another system as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from turnwise.commands import Option, Target, Trust, command
from turnwise.errors import ConfigError


@command("convert", help="Convert a config file of another system to a recipe")
def convert(
    file: Annotated[Path, Target("FILE", "YAML file of RAGEN, align-anything, verl or Trinity-RFT")],
    out: Annotated[Path | None, Option("FILE", "file to write (default: the terminal)")] = None,
    json: Annotated[bool, Option(help="print how every key was converted as JSON")] = False,
    trust: Trust = False,
) -> int:
    from rich.console import Console

    from turnwise.checks.setup import validate_run
    from turnwise.config.load import load_settings, translate_file
    from turnwise.config.trust import block_untrusted_imports
    from turnwise.convert.load import to_recipe, to_translation_rows
    from turnwise.infra.atomic_files import atomic_write
    from turnwise.report.document import Document, show

    translation = translate_file(str(file))
    if translation is None:
        raise ConfigError(f"'{file}' is a recipe of turnwise already; there is nothing to convert.")
    # Loaded as `train` would, except for code that the file names: what is written is valid.
    with block_untrusted_imports(trusts=trust):
        validate_run(load_settings(str(file)))
    recipe = to_recipe(translation, file.name)
    if json:
        keys = to_translation_rows(translation)
        return show(Document(data={"dialect": translation.format_name, "keys": keys, "recipe": recipe}), json=True)
    if out:
        atomic_write(out, recipe)
        return show(Document(notes=[f"wrote {out}; train it with: turnwise train --config {out}"]))
    Console().print(recipe, markup=False, highlight=False, soft_wrap=True, end="")
    return 0
