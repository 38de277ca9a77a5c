"""Numbers of the source that may only fall, and the file that holds them, `tests/budgets.json`.

    python -m tests.budgets                         today's numbers beside their budgets
    python -m tests.budgets --lower                 lower every budget to today's number; none is raised
    python -m tests.budgets --lower --times FILE    core-seconds of the tests too, from `pytest --times FILE`
    python -m tests.budgets --write [--times FILE]  write the file from nothing, higher numbers included

To raise one number, edit the file by hand, so that the diff shows it. Code is counted by its syntax tree and its
tokens: a word in a comment or a text is no cast.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import math
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("budgets.json")
DENSITY = "characters_per_100_lines_of_code"
MEANINGS: Mapping[str, str] = {
    "modules": "Python files in src/turnwise",
    "lines": "lines of these",
    DENSITY: "without indentation, comments, docstrings and blank lines",
    "modules_with_one_importer": "modules that exactly one other module imports",
    "cast": "calls of typing.cast",
    "getattr_hasattr": "calls of getattr and hasattr",
    "any": "uses of typing.Any",
    "type_ignore": "comments that silence the type checker",
    "settings": "rows of docs/configuration.md",
    "settings_beside_environments": "different keys there, without those of environments",
    "private_words": "words of WORDS in src, docs and the pages of the repository",
}
WORDS = re.compile(
    r"\b(told|tells?|hears?|nobody|whoever|somebody|anew|yardsticks?|dice|rooms?|house|outsiders?|refuses\s+to\s+know|"
    r"learnt)\b",
    re.IGNORECASE,
)
_GAMES = r"rooms?|house"
ALLOWED: Mapping[str, str] = {
    "*alfworld*": _GAMES,
    "*sokoban*": _GAMES,
    "docs/results/step_wise.md": _GAMES,
    "docs/results/environments.md": _GAMES,
    # Generated from the source, where every other use of these words is counted.
    "docs/configuration.md": _GAMES,
}
"""ALFWorld and Sokoban are about rooms and houses: words that a file may use, by a pattern of its path."""
MODEL_READS = ('"Living Room"', "house slipper", "Their names tell which is which.")
"""What a model reads, word for word: to change it is to change what runs learn."""
_TEXTS = (".py", ".md", ".js", ".html", ".css", ".yaml", ".yml")
_SLACK = 0.01
_LEAST_SLACK = 3
_DENSITY_HEADROOM = 0.005
"""A mean moves a little with every change, in either direction."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Source:
    """A Python file: its text, every node of its tree, and its tokens."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.nodes = list(ast.walk(ast.parse(text)))
        self.tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        self.from_typing: dict[str, str] = {}
        """Names in this file, and what they are in `typing`."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "typing":
                self.from_typing |= {alias.asname or alias.name: alias.name for alias in node.names}


def measure(root: Path = ROOT) -> dict[str, int]:
    """Today's number of each of `MEANINGS`."""
    package = root / "src" / "turnwise"
    sources = {_module(file, root / "src"): Source(file.read_text("utf-8")) for file in sorted(package.rglob("*.py"))}
    num_rows, num_keys = count_settings((root / "docs" / "configuration.md").read_text("utf-8"))
    texts = {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in find_texts(root)}
    return {
        "modules": len(sources),
        "lines": sum(len(source.lines) for source in sources.values()),
        DENSITY: characters_per_100_lines(sources.values()),
        "modules_with_one_importer": count_single_importers(sources),
        "cast": sum(count_casts(source) for source in sources.values()),
        "getattr_hasattr": sum(count_getattr(source) for source in sources.values()),
        "any": sum(count_any(source) for source in sources.values()),
        "type_ignore": sum(count_ignores(source) for source in sources.values()),
        "settings": num_rows,
        "settings_beside_environments": num_keys,
        "private_words": sum(count_words(path, text) for path, text in texts.items()),
    }


def count_casts(source: Source) -> int:
    """Calls of `typing.cast`, under whichever name it was imported."""
    return sum(isinstance(node, ast.Call) and _is_of_typing(source, node.func, "cast") for node in source.nodes)


def count_getattr(source: Source) -> int:
    """Calls of `getattr` and `hasattr`."""
    calls = (node.func for node in source.nodes if isinstance(node, ast.Call))
    return sum(isinstance(name, ast.Name) and name.id in ("getattr", "hasattr") for name in calls)


def count_any(source: Source) -> int:
    """Uses of `Any` in annotations and values; its imports do not count."""
    return sum(_is_of_typing(source, node, "Any") for node in source.nodes)


def _is_of_typing(source: Source, node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "typing"
    return isinstance(node, ast.Name) and source.from_typing.get(node.id) == name


def count_ignores(source: Source) -> int:
    """Comments with `type: ignore` or `pyright: ignore`."""
    comments = (token.string for token in source.tokens if token.type == tokenize.COMMENT)
    return sum(bool(re.search(r"#\s*(type|pyright):\s*ignore", comment)) for comment in comments)


def characters_per_100_lines(sources: Iterable[Source]) -> int:
    """How densely lines of code are packed: characters between indentation and comment, over all lines with code."""
    lengths = [length for source in sources for length in _code_lengths(source)]
    return round(100 * sum(lengths) / max(len(lengths), 1))


def _code_lengths(source: Source) -> Iterator[int]:
    ends: dict[int, int] = {}
    for statement in _statements(source):
        # A string alone is a docstring.
        if [token.type for token in statement] != [tokenize.STRING]:
            for token in statement:
                ends |= {line: len(source.lines[line - 1]) for line in range(token.start[0], token.end[0])}
                ends[token.end[0]] = token.end[1]
    return (len(source.lines[line - 1][:end].strip()) for line, end in ends.items())


def _statements(source: Source) -> Iterator[list[tokenize.TokenInfo]]:
    statement: list[tokenize.TokenInfo] = []
    for token in source.tokens:
        if token.type == tokenize.NEWLINE:
            yield statement
            statement = []
        elif token.type not in _NO_CODE:
            statement.append(token)


def count_single_importers(sources: Mapping[str, Source]) -> int:
    """Modules that exactly one other imports, wherever in it; `sources` by dotted name."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module, source in sources.items():
        for name in (name for node in source.nodes for name in _imported(node)):
            target = _longest_known(name, sources)
            if target and target != module:
                importers[target].add(module)
    return sum(len(found) == 1 for found in importers.values())


def _imported(node: ast.AST) -> Iterator[str]:
    """Dotted names; the package has no relative imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _longest_known(name: str, modules: Mapping[str, object]) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _module(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_settings(page: str) -> tuple[int, int]:
    """All rows of the page of settings, and the different keys of those that are not of environments."""
    num_rows, keys = 0, set()
    heading = path = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading, found = line, re.match(r"#+ `([^`]+)`", line)
            path = found[1] if found else ""
        elif row := re.match(r"\| `([^`]+)` \|", line):
            num_rows += 1
            if "environment" not in heading and not re.match(r"env\.\w", path):
                keys.add(f"{path}.{row[1]}")
    return num_rows, len(keys)


def find_texts(root: Path) -> Iterator[Path]:
    """What users and contributors read. The changelog is history."""
    for folder in ("src", "docs"):
        yield from (file for file in sorted((root / folder).rglob("*")) if file.suffix in _TEXTS)
    yield from (file for file in sorted(root.glob("*.md")) if file.name != "CHANGELOG.md")


def count_words(path: str, text: str) -> int:
    """Words of `WORDS` that are not allowed in this file."""
    for sentence in MODEL_READS:
        text = text.replace(sentence, "")
    allowed = "|".join(words for pattern, words in ALLOWED.items() if fnmatch(path, pattern))
    return sum(not (allowed and re.fullmatch(allowed, found[1], re.IGNORECASE)) for found in WORDS.finditer(text))


def find_faults(today: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """What is above its budget, and what is so far below that the file must follow."""
    faults = [f"`{name}` is unknown. Take it out of {FILE.name}." for name in sorted(budgets.keys() - today.keys())]
    for name, number in today.items():
        budget = budgets.get(name)
        if budget is None:
            faults.append(f"`{name}` has no budget. Add it to {FILE.name}: {number}.")
        elif number > budget:
            faults.append(
                f"`{name}` ({MEANINGS[name]}) must be at most {budget:,}, got {number:,}: {number - budget:,} "
                f"too many. Take as much out elsewhere; a rise that is meant is an edit of tests/{FILE.name}."
            )
        elif number < budget - slack(budget):
            faults.append(
                f"`{name}` ({MEANINGS[name]}) has a budget of {budget:,} and is at {number:,}. "
                "Run `python -m tests.budgets --lower`, so that it cannot rise again."
            )
    return faults


def slack(budget: int) -> int:
    """How far a number may fall before the file must follow."""
    return max(_LEAST_SLACK, round(budget * _SLACK))


def as_budgets(today: Mapping[str, int]) -> dict[str, int]:
    """The budgets that today's numbers just keep."""
    return {**today, DENSITY: round(today[DENSITY] * (1 + _DENSITY_HEADROOM))}


def lowered(old: Mapping[str, int], today: Mapping[str, int]) -> dict[str, int]:
    """Every budget at today's number where that is lower; none is raised, none is added."""
    return {name: min(budget, today.get(name, budget)) for name, budget in old.items()}


def read_budgets(file: Path = FILE) -> dict[str, dict[str, int]]:
    """Two tables: `numbers` of the source, and `core_seconds` of the tests by folder."""
    return json.loads(file.read_text("utf-8"))


def main(argv: Sequence[str] | None = None, root: Path = ROOT, file: Path = FILE) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.budgets", description="numbers that may only fall")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--lower", action="store_true", help="lower budgets to today's numbers; none is raised")
    change.add_argument("--write", action="store_true", help="write today's numbers, higher ones included")
    parser.add_argument("--times", type=Path, metavar="FILE", help="core-seconds by folder, from `pytest --times FILE`")
    options = parser.parse_args(argv)
    today = {"numbers": measure(root)}
    if options.times is not None:
        try:
            found = json.loads(options.times.read_text("utf-8"))
            today["core_seconds"] = {str(folder): math.ceil(seconds) for folder, seconds in found.items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            parser.error(f"--times must be a file of `pytest --times FILE`, got {options.times}: {error}.")
    budgets = read_budgets(file) if file.exists() else {"numbers": {}, "core_seconds": {}}
    if options.write or options.lower:
        reached = {**today, "numbers": as_budgets(today["numbers"])}
        for table, numbers in reached.items():
            # Folders of tests come and go; a number of the source that has no budget is a fault.
            new = numbers if table == "core_seconds" else {}
            budgets[table] = numbers if options.write else {**new, **lowered(budgets[table], numbers)}
        file.write_text(json.dumps(budgets, indent=2, sort_keys=True) + "\n", "utf-8")
    for name, number in today["numbers"].items():
        budget = budgets["numbers"].get(name, 0)
        sys.stdout.write(f"{name:34} {number:8,}  at most {budget:8,}  {MEANINGS[name]}\n")
    faults = find_faults(today["numbers"], budgets["numbers"])
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
