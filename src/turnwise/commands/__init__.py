"""Commands of `turnwise`: one function each, in a module of this package.

    @command("count", help="Count the episodes of a run")
    def count(run: Annotated[Path, Target("RUN")], split: str = "train", json: bool = False) -> int:

The signature is the command line. Parameters without a default and those marked with `Target` are positional, others
and those after `*` are options; `overrides` receives settings (`key=value`, `--key value`). The function returns the
exit code. `cli.py` finds commands in the source, so name and help are literals. Modules import in the function what
needs torch or pydantic: help and mistakes are answered without them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter as FunctionParameter
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from turnwise.errors import ConfigError

_Function = TypeVar("_Function", bound=Callable[..., int])
_LISTS = (list, tuple, Sequence)
_UNIVERSAL = {"json": "print JSON"}
"""Help of options that mean the same in every command."""


@dataclass(frozen=True, slots=True)
class Option:
    """How a parameter is named and completed on the command line."""

    metavar: str = ""
    """By default the name in capitals, `N` for an integer."""
    help: str = ""
    """The default is appended where it is a number or a text, unless `help` names it."""
    choices: Sequence[str] = ()
    complete: str = ""
    """What a shell offers: `recipes`, `envs`, `suites` or `files`. By default files for a `Path`."""


class Target(Option):
    """Marks a positional parameter."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a command's function as an argument of the command line."""

    name: str
    type: type
    """Of one value."""
    is_list: bool
    default: object
    mark: Option
    is_required: bool

    @property
    def complete(self) -> str:
        return self.mark.complete or ("files" if self.type is Path else "")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        flag = f"--{self.name.replace('_', '-')}"
        text = self.mark.help or _UNIVERSAL.get(self.name, "")
        if self.type is bool:
            parser.add_argument(flag, action="store_true", help=text)
            return
        is_shown = isinstance(self.default, str | int | float) and self.default != "" and "(default:" not in text
        shared: dict[str, Any] = {
            "metavar": self.mark.metavar or ("N" if self.type is int else self.name.upper()),
            "help": f"{text} (default: {self.default})".strip() if is_shown else text,
            "choices": self.mark.choices or None,
            # Texts become paths when the command is called: an empty one is a mistake that the parser reports.
            "type": self.type if self.type in (int, float) else None,
        }
        if not isinstance(self.mark, Target):
            parser.add_argument(flag, default=self.default, required=self.is_required, **shared)
        elif self.is_required:
            parser.add_argument(self.name, nargs="+" if self.is_list else None, **shared)
        else:
            parser.add_argument(self.name, nargs="*" if self.is_list else "?", default=self.default, **shared)

    def convert(self, given: Any) -> object:
        """Return what the function takes for a parsed value."""
        if self.is_list:
            return [self.type(value) for value in given]
        return Path(given) if self.type is Path and given is not None else given


@dataclass(frozen=True, slots=True)
class Command:
    """A function with its name on the command line."""

    name: str
    help: str
    epilog: str
    function: Callable[..., int]

    def parameters(self) -> list[Parameter]:
        """Arguments in the order of the signature; settings are none of them."""
        hints = get_type_hints(self.function, include_extras=True)
        named = signature(self.function).parameters
        return [_read_parameter(one, hints[name]) for name, one in named.items() if name != "overrides"]

    def run(self, options: Mapping[str, object], overrides: Sequence[str]) -> int:
        """Call the function with parsed arguments."""
        given = {one.name: one.convert(options[one.name]) for one in self.parameters()}
        if "overrides" in signature(self.function).parameters:
            given["overrides"] = list(overrides)
        elif overrides:
            raise ConfigError(f"unrecognized argument '{overrides[0]}'. See 'turnwise {self.name} --help'.")
        return self.function(**given)


REGISTERED: dict[str, Command] = {}
"""Commands of the modules that are imported."""


def command(name: str, *, help: str, epilog: str = "") -> Callable[[_Function], _Function]:
    """Make a function a command; `help` is one imperative sentence without a full stop."""

    def register(function: _Function) -> _Function:
        REGISTERED[name] = Command(name, help, epilog, function)
        return function

    return register


def _read_parameter(parameter: FunctionParameter, hint: Any) -> Parameter:
    extras: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        hint = next(one for one in get_args(hint) if one is not NoneType)
    is_list = get_origin(hint) in _LISTS
    is_required = parameter.default is parameter.empty
    is_target = is_required and parameter.kind is not parameter.KEYWORD_ONLY
    return Parameter(
        name=parameter.name,
        type=get_args(hint)[0] if is_list else hint,
        is_list=is_list,
        default=None if is_required else parameter.default,
        mark=next((one for one in extras if isinstance(one, Option)), Target() if is_target else Option()),
        is_required=is_required,
    )


# --- arguments of several commands -----------------------------------------------------------------------------------

OVERRIDES_HELP = """
settings can be changed with key.path=value or --key.path value, for example
  turnwise train frozenlake learn.steps=20 --run.seed 3
"""

RecipeName = Annotated[
    str | None, Target("RECIPE", "name or YAML file of a recipe (default: frozenlake)", complete="recipes")
]
ConfigFile = Annotated[Path | None, Option("FILE", "YAML file of a recipe")]
ConfigName = Annotated[str | None, Option("NAME", "name of a recipe", complete="recipes")]
Trust = Annotated[
    bool, Option(help="import the modules that the file names, which runs their code (default: not imported)")
]
RunPath = Annotated[Path, Target("RUN", "run directory")]
Port = Annotated[int, Option(help="port to listen on (default: a free port)")]
EnvName = Annotated[str, Target("ENV", "name of an environment, or package.module:Class", complete="envs")]
Python = Annotated[str | None, Option("PROGRAM", "Python to run the environment with (default: this one)")]


def choose_recipe(
    recipe: str | None, config: Path | None, config_name: str | None, overrides: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the recipe that one of the three arguments names, and the overrides.

    `train learn.steps=3` is the default recipe with an override.
    """
    from turnwise.config.recipes import find_named
    from turnwise.convert.load import default_recipe

    overrides = list(overrides)
    if recipe and "=" in recipe:
        recipe, overrides = None, [recipe.lstrip("+"), *overrides]
    given = [str(name) for name in (recipe, config, config_name) if name]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} given; expected one recipe: RECIPE, --config FILE or --config-name NAME."
        )
    if config and not config.is_file():
        raise ConfigError(f"--config: file '{config}' does not exist.")
    if config_name:
        return str(find_named(config_name)), overrides
    return (given[0] if given else default_recipe(overrides)), overrides
