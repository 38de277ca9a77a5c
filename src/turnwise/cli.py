"""The command line: reads words and calls the rooms. No logic of its own.

Exit codes: 0 done; 2 a user's mistake, said in one message without a traceback; 1 a run that failed; 130 interrupted;
143 ended by SIGTERM, with everything saved as after an interruption.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import shtab

from turnwise import __version__
from turnwise.errors import ClusterError, EngineError, LearnError, SyncError, TurnwiseError, did_you_mean
from turnwise.infra.atomic_files import tell_trouble
from turnwise.infra.process_state import wait_briefly
from turnwise.infra.threads import Terminated
from turnwise.infra.untrusted import find_users_line, tell_error

_OVERRIDES = """
settings can be changed with key.path=value or --key.path value, for example
  turnwise train frozenlake learn.steps=20 --run.seed 3
"""
_PLAY_WORDS = """
environment settings: key=value; of a model also context.key=value, for example
  turnwise play sokoban rows=6 columns=6 --agent smollm2 context.max_response_tokens=64
"""


class _Parser(argparse.ArgumentParser):
    """argparse with the house's manners: one clear line, the closest command, exit code 2."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and self.prog == "turnwise":
            given = message.split("'")[1]
            message = f"unknown command '{given}'. {did_you_mean(given, COMMANDS)}"
        self.exit(2, f"turnwise: {message}\nSee '{self.prog} --help'.\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Settings are taken out first: argparse would read the value of `--learn.steps 3` as a recipe."""
        if self._subparsers is not None or args is None:
            return super().parse_known_args(args, namespace)
        known, settings = self._split(list(args))
        options, rest = super().parse_known_args(known, namespace)
        self._refuse_empty(vars(options))
        return options, [*settings, *rest]

    def _refuse_empty(self, given: dict[str, Any]) -> None:
        """An empty argument is a variable that was not set, and never means the default."""
        for action in self._actions:
            found = given.get(action.dest)
            values = found if isinstance(found, list) else [found]
            if any(isinstance(value, str) and not value.strip() for value in values):
                name = action.option_strings[0] if action.option_strings else action.metavar
                is_needed = action.required and not action.option_strings
                otherwise = "" if is_needed else " Leave it out for the default."
                self.error(f"{name}: an empty word given; expected a name or a path.{otherwise}")

    def _split(self, waiting: list[str]) -> tuple[list[str], list[str]]:
        """Words of this command, and `--key value` or `--key=value` for keys that are none of its options."""
        known: list[str] = []
        settings: list[str] = []
        while waiting:
            word = waiting.pop(0)
            option = self._option_string_actions.get(word.partition("=")[0])
            is_setting = option is None and word.startswith("--")
            target = settings if is_setting else known
            target.append(word)
            takes_value = is_setting or (option is not None and option.nargs != 0)
            if takes_value and "=" not in word and waiting and not waiting[0].startswith("--"):
                target.append(waiting.pop(0))
        return known, settings


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="turnwise", description="Train language-model agents over many turns.")
    parser.add_argument("--version", action="version", version=f"turnwise {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_eval(commands)
    _add_compare(commands)
    _add_play(commands)
    _add_look_before(commands)
    _add_explorers(commands)
    _add_export(commands)
    _add_export_model(commands)
    _add_lab(commands)
    _add_serve(commands)
    _add_serve_env(commands)
    _add_audit(commands)
    _add_replay(commands)
    _add_look_after(commands)
    _add_completion(commands)
    return parser


def _add(commands: argparse._SubParsersAction, name: str, text: str, epilog: str = "") -> argparse.ArgumentParser:  # type: ignore[type-arg]
    return commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="a recipe's name or YAML file (default: frozenlake)"
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file")
    parser.add_argument("--config-name", metavar="NAME", help="a recipe's name")


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="import the modules that the file names, which runs them (default: never)"
    )


def _add_train(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(commands, "train", "train a recipe", _OVERRIDES)
    _add_recipe(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="where to write the run (default: a new folder in runs/)")
    parser.add_argument("--resume", metavar="RUN", help="go on with an interrupted run")


def _add_eval(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "eval",
        "evaluate a run, a model, an endpoint, 'oracle', 'random' or a rule on held-out episodes",
        _OVERRIDES,
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a run directory or a checkpoint in it, a model (a folder, a GGUF file, 'smollm2', a hub name), the URL "
        "of an OpenAI-compatible endpoint, 'oracle', 'random', another rule of the environment, or a rule of your own "
        "as package.module:function",
    )
    parser.add_argument("--env", metavar="ENV", help="an environment, for rules and endpoints")
    parser.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="the recipe in whose setting a model, an endpoint or a rule plays (default: frozenlake)",
    )
    parser.add_argument(
        "--suite", metavar="NAME", help="play in every setting of a suite; mission: all shipped environments"
    )
    parser.add_argument("--episodes", type=int, metavar="N", help="how many tasks (default: as the recipe says)")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="K",
        help="plays of each task, sampled at eval.temperature, or at rollout.temperature where that is 0 (default: 1, "
        "greedy)",
    )
    parser.add_argument("--split", default="eval", metavar="S", help="which tasks (default: eval)")
    parser.add_argument(
        "--out", metavar="DIR", help="where to save results and episodes (default: in the run, or runs/)"
    )
    parser.add_argument("--markdown", metavar="FILE", help="also write the report there as Markdown")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_compare(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "compare",
        "compare evaluations task by task: the first with each of the others",
        "several seeds of one side are joined by commas, or are the runs in one folder, for example\n"
        "  turnwise compare runs/grpo-1,runs/grpo-2 runs/ppo-1,runs/ppo-2",
    )
    parser.add_argument(
        "sides", nargs="+", metavar="SIDE", help="a run, a folder or file that 'turnwise eval' wrote, or several"
    )
    parser.add_argument("--markdown", metavar="FILE", help="also write the comparison there as Markdown")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_play(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(commands, "play", "play an environment in the terminal", _PLAY_WORDS)
    parser.add_argument("env", metavar="ENV", help="an environment's name or package.module:Class")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which task (default: 0)")
    parser.add_argument("--split", default="eval", metavar="S", help="which tasks (default: eval)")
    parser.add_argument(
        "--agent", default="human", metavar="WHO", help="human, oracle, random, a run, a model or a URL"
    )


def _add_look_before(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    envs = _add(commands, "envs", "list the environments with their actions and settings")
    envs.add_argument("--json", action="store_true", help="print JSON")
    check = _add(commands, "check", "check a config file, or an environment against its contract", _OVERRIDES)
    check.add_argument("target", metavar="FILE|ENV", help="a recipe, a YAML file, or an environment")
    check.add_argument("--python", metavar="PROGRAM", help="the Python that an environment runs under (default: this)")
    check.add_argument("--json", action="store_true", help="print JSON")
    _add_trust(check)
    convert = _add(commands, "convert", "write a config file of another project in the words of this one")
    convert.add_argument("file", metavar="FILE", help="a YAML file of RAGEN, align-anything, verl or Trinity-RFT")
    convert.add_argument("--out", metavar="FILE", help="where to write it (default: the terminal)")
    convert.add_argument("--json", action="store_true", help="print what has become of every key as JSON")
    _add_trust(convert)
    plan = _add(commands, "plan", "say in plain words what a recipe will do", _OVERRIDES)
    _add_recipe(plan)
    plan.add_argument("--model", metavar="NAME", help="count for qwen2.5-0.5b, qwen2.5-7b or qwen2.5-32b on GPUs")
    plan.add_argument("--gpus", type=int, metavar="N", help="how many, with --model (default: 1, 8 and 64)")
    plan.add_argument("--json", action="store_true", help="print JSON")
    _add_trust(plan)
    doctor = _add(
        commands,
        "doctor",
        "look at a whole setup and try it before it runs: packages, settings, models, data, sixteen episodes",
        _OVERRIDES,
    )
    _add_recipe(doctor)
    doctor.add_argument("--json", action="store_true", help="print JSON")


def _add_export(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    export = _add(commands, "export", "write what a run has explored to a file")
    export.add_argument("run", metavar="RUN", help="a run with buffer.type sqlite")
    export.add_argument(
        "--out", metavar="FILE", help="ends in .parquet or .jsonl (default: experience.parquet in the run)"
    )


def _add_explorers(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(commands, "explorers", "change how many explorers a run on a cluster has, while it runs")
    parser.add_argument("run", metavar="RUN", help="a run with cluster.type ray")
    parser.add_argument("number", type=int, metavar="N", help="how many, at least 1")


def _add_export_model(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "export-model",
        "write a run's policy as a Hugging Face folder with a model card",
        "--push uses the account of `hf auth login`; a repository that it makes is private",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("dir", metavar="DIR", help="a new folder")
    parser.add_argument("--step", type=int, metavar="N", help="which checkpoint (default: the last)")
    parser.add_argument("--push", metavar="NAME", help="also upload it to the hub as NAME, such as owner/model")


def _add_lab(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    lab = _add(
        commands,
        "lab",
        "benchmark advantage estimators (credit) on small MDPs with known advantages",
        "settings of an estimator can be changed with NAME.setting=value\n  turnwise lab credit gae.lam=0.9",
    )
    lab.add_argument("experiment", metavar="credit", choices=("credit",), help="credit")
    lab.add_argument("--world", metavar="NAME", help="one MDP: bandit, corridor, key_door or lake (default: all)")
    lab.add_argument("--critic", metavar="C", help="noisy (true values with an error) or exact (default: noisy)")
    lab.add_argument("--critic-noise", type=float, metavar="X", help="that error, in typical advantages (default: 1)")
    lab.add_argument("--episodes", type=int, metavar="N", help="episodes per batch (default: 48)")
    lab.add_argument("--group-size", type=int, metavar="N", help="rollouts per group (default: 8)")
    lab.add_argument("--batches", type=int, metavar="N", help="independent batches to average over (default: 100)")
    lab.add_argument("--seed", type=int, metavar="N", help="seed of policy, critic and episodes (default: 0)")
    lab.add_argument("--out", metavar="DIR", help="also write credit_lab.md and credit_lab.png there")
    lab.add_argument("--json", action="store_true", help="print JSON")


def _add_serve(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "serve",
        "serve a policy to agents that speak OpenAI's or Anthropic's API, and record what they do as experience",
        "the token is made at start, or given as TURNWISE_SERVE_TOKEN in the environment\n" + _OVERRIDES,
    )
    parser.add_argument("target", metavar="TARGET", help="a run directory, a model or a recipe")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="where to listen (default: a free port)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the interface to listen on, such as 0.0.0.0 for agents in containers (default: this machine alone)",
    )
    parser.add_argument(
        "--recipe", metavar="RECIPE", help="the recipe in whose setting a model is served (default: as it is)"
    )


def _add_serve_env(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "serve-env",
        "serve an environment to clients of OpenEnv's protocol",
        "environment settings: key=value, for example\n  turnwise serve-env frozen_lake size=3 --port 8000\n",
    )
    parser.add_argument("env", metavar="ENV", help="an environment's name or package.module:Class")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="H",
        help="where to listen (default: this machine alone; no token is asked)",
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="where to listen (default: a free port)")
    parser.add_argument("--max-sessions", type=int, default=64, metavar="N", help="most players at once (default: 64)")
    parser.add_argument("--python", metavar="PROGRAM", help="the Python that it runs under (default: this)")


def _add_audit(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands, "audit", "check what a run has written, or put faults into small runs and see whether they are found"
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run directory")
    parser.add_argument("--seed-faults", action="store_true", help="one small run for each fault of the catalogue")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_replay(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "replay",
        "play and learn a recorded step once more, and say whether it comes out the same",
        "settings of credit and loss say what the step would have been under them, for example\n"
        "  turnwise replay runs/mine --step 7 credit.type=grpo",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="which step, from 1")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_look_after(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    show = _add(commands, "show", "show an episode of a run turn by turn, with what was learnt from each token")
    show.add_argument("run", metavar="RUN", help="a run directory")
    show.add_argument("episode", metavar="EPISODE", help="its id, also as STEP:ID")
    show.add_argument("--json", action="store_true", help="print JSON")
    status = _add(commands, "status", "say how a run stands: state, progress, who waits for whom, failures, findings")
    status.add_argument("run", metavar="RUN", help="a run directory")
    status.add_argument("--json", action="store_true", help="print JSON")
    view = _add(
        commands,
        "view",
        "open a page that shows runs live: curves, episodes, every token with its numbers",
        "the page is for this machine alone; its address holds a random token. Ctrl-C ends it",
    )
    view.add_argument("runs", nargs="*", metavar="RUN", help="run directories, or folders of them (default: runs)")
    view.add_argument("--port", type=int, default=0, metavar="N", help="where to listen (default: a free port)")
    view.add_argument("--at", metavar="PLACE", help="a place on the page, such as compare names them: #/…")
    report = _add(commands, "report", "write one HTML file that shows a run, to be sent to a colleague")
    report.add_argument("run", metavar="RUN", help="a run directory")
    report.add_argument("--out", metavar="FILE", help="where to write it (default: report.html in the run)")
    report.add_argument("--episodes", type=int, default=40, metavar="N", help="how many episodes, about (default: 40)")


def _add_completion(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _add(
        commands,
        "completion",
        "print what a shell needs to complete words of turnwise",
        'bash: eval "$(turnwise completion bash)" in ~/.bashrc\n'
        "zsh:  turnwise completion zsh > a file named _turnwise in a folder of $fpath",
    )
    parser.add_argument("shell", metavar="bash|zsh", choices=("bash", "zsh"), help="which shell")


COMMANDS = (
    "train", "eval", "compare", "play", "envs", "check", "convert", "plan", "doctor", "explorers", "export",
    "export-model", "lab", "serve", "serve-env", "audit", "replay", "show", "status", "view", "report", "completion",
)  # fmt: skip


SHELLS = ("bash", "zsh")
_NAMES = {"recipe": "recipes", "config_name": "recipes", "env": "envs", "suite": "suites"}
"""Options and places whose words are known."""
_FILES = frozenset({"target", "run", "dir", "file", "config", "run_dir", "resume", "out", "markdown", "sides", "agent"})


def write_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    from turnwise.commands.eval import SUITES  # noqa: PLC0415
    from turnwise.config.component import ENVS  # noqa: PLC0415
    from turnwise.config.recipes import list_recipes  # noqa: PLC0415

    for action in _actions(parser):
        if action.dest in _NAMES:
            _complete(action, dict.fromkeys(SHELLS, f"_turnwise_{_NAMES[action.dest]}"))
        elif action.dest in _FILES:
            _complete(action, shtab.FILE)
    words = {"recipes": list_recipes(), "envs": sorted(ENVS), "suites": sorted(SUITES)}
    preamble = {
        "bash": "\n".join(_bash_function(name, " ".join(known)) for name, known in words.items()),
        "zsh": "\n".join(_zsh_function(name, " ".join(known)) for name, known in words.items()),
    }
    # Its annotation knows a text for all shells alone; a text for each is what its documentation says.
    return shtab.complete(parser, shell=shell, preamble=preamble)  # type: ignore[arg-type]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of a parser and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _complete(action: argparse.Action, how: Any) -> None:
    # The way in which shtab is told: an attribute of argparse's own object.
    action.complete = how  # type: ignore[attr-defined]


def _bash_function(name: str, words: str) -> str:
    return f'_turnwise_{name}() {{ compgen -W "{words}" -- "$1"; compgen -f -- "$1"; }}'


def _zsh_function(name: str, words: str) -> str:
    return f"_turnwise_{name}() {{ compadd -- {words}; _files; }}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `turnwise` command."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    options, rest = parser.parse_known_args(words)
    if options.command == "completion":
        return _print_completion(parser, options.shell)
    wait_briefly()
    try:
        # Imported after parsing: help and mistakes in the words answer at once, without loading torch.
        from turnwise.commands import train as commands  # noqa: PLC0415

        return commands.run(options, parse_overrides(rest))
    except (LearnError, SyncError, ClusterError) as error:
        _tell(f"the run failed: {error}")
        return 1
    except EngineError as error:
        _tell(str(error))
        return 1
    except TurnwiseError as error:
        _tell(str(error))
        return 2
    except Terminated:
        _tell("ended by SIGTERM; go on with 'turnwise train --resume RUN'")
        return 143
    except Exception as error:
        # A traceback is for mistakes of ours; whoever wrote the line that failed is told which one it is.
        line = find_users_line(error)
        if line is None and (trouble := tell_trouble(error)) is not None:
            _tell(trouble)
            return 2
        if line is None:
            raise
        _tell(f"your code failed: {line}\n  {tell_error(error)}")
        return 1
    except KeyboardInterrupt:
        _tell("interrupted; go on with 'turnwise train --resume RUN'")
        return 130


def _print_completion(parser: argparse.ArgumentParser, shell: str) -> int:

    sys.stdout.write(write_completion(parser, shell))
    return 0


def _tell(problem: str) -> None:
    """Why the command ends, for people and for whoever reads its errors from a pipe."""
    sys.stderr.write(f"turnwise: {problem}\n")


def parse_overrides(words: Sequence[str]) -> list[str]:
    """`key=value`, `+key=value`, `--key=value` and `--key value` become `key=value`; a lone `--key` means true."""
    overrides: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--") or "=" in word:
            overrides.append(word.removeprefix("--").lstrip("+"))
        elif waiting and not waiting[0].startswith("--"):
            overrides.append(f"{word[2:]}={waiting.pop(0)}")
        else:
            overrides.append(f"{word[2:]}=true")
    return overrides
