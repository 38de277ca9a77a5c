"""Config formats as YAML files: each accounts for all our settings, and one is added without changing a module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.config.formats import CONFIG_FORMATS
from turnwise.config.load import load_settings, load_with_translation, translate_file
from turnwise.config.trust import UntrustedCodeError, block_untrusted_imports
from turnwise.convert.load import TableFormat, load_formats
from turnwise.errors import ConfigError

CONFIGURATION = Path(__file__).parents[3] / "docs" / "configuration.md"
SKYRL = """\
detect: [trainer.algorithm.advantage_estimator, generator.sampling_params]
rows:
  trainer.algorithm.advantage_estimator: {to: credit.type, convert: estimator_name}
  trainer.epochs: {to: tasks.epochs}
  trainer.logger: {to: report.trackers, convert: as_list}
  generator.sampling_params.temperature: {to: rollout.temperature}
  generator.enforce_eager: {ignore: "the local engine does not compile"}
  generator.backend: {ignore: "one engine", when: [vllm], otherwise: "only vllm can be followed"}
  generator.http_endpoint: {unsupported: "serve a run: turnwise serve RUN"}
  environment.env_class: {to: env.type, values: {lake: frozen_lake}, expected: "an environment"}
defaults: {learn.kl.type: none, learn.optim.weight_decay: 0.03}
no_counterpart: [audit.mode, report.tokens]
"""
ESTIMATOR_NAME = """\
def estimator_name(value):
    return {"loop": "rloo"}.get(value, value)
"""
THEIRS = """\
trainer: {algorithm: {advantage_estimator: loop}, logger: tensorboard_like}
generator: {sampling_params: {temperature: 0.7}, enforce_eager: true}
environment: {env_class: lake}
"""


def our_settings() -> set[str]:
    """All keys of the page that is generated from the settings classes, but those of environments."""
    keys: set[str] = set()
    for section in re.split(r"^## ", CONFIGURATION.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        name = found.group(1) if (found := re.match(r"`([\w.]+)`", title)) else ""
        if name.startswith("env") and title != "`env`":
            continue
        rows = re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)
        keys |= {f"{name}.{row}" if name else row for row in rows}
    return keys


@pytest.mark.parametrize("config_format", load_formats(), ids=lambda config_format: config_format.name)
def test_every_setting_is_in_a_row_or_has_no_counterpart(config_format: TableFormat) -> None:
    ours = our_settings()
    assert len(ours) > 100
    where = f"rows, also_sets or no_counterpart of {config_format.name}"
    assert sorted(ours - config_format.decided - config_format.no_counterpart) == [], f"missing in {where}"
    assert sorted(config_format.no_counterpart - ours) == [], f"no setting, in {where}"
    assert sorted(config_format.no_counterpart & config_format.decided) == [], f"twice in {where}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a format of its own."""
    (tmp_path / "convert").mkdir()
    (tmp_path / "convert" / "skyrl.yaml").write_text(SKYRL)
    (tmp_path / "convert" / "skyrl.py").write_text(ESTIMATOR_NAME)
    (tmp_path / "convert" / "notes.yaml").write_text("something: else\n")
    (tmp_path / "theirs.yaml").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_format_is_one_file_in_the_folder_convert(folder: Path) -> None:
    translation = translate_file("theirs.yaml")
    assert translation is not None
    assert translation.format_name == "skyrl"
    assert not translation.problems
    assert {line.key: line.kind for line in translation.lines}["generator.enforce_eager"] == "no meaning"
    assert translation.settings == {
        "learn.kl.type": "none",
        "learn.optim.weight_decay": 0.03,
        "credit.type": "rloo",
        "report.trackers": ["tensorboard_like"],
        "rollout.temperature": 0.7,
        "env.type": "frozen_lake",
    }


def test_a_file_in_it_trains_and_takes_overrides_in_its_words(folder: Path) -> None:
    (folder / "theirs.yaml").write_text(THEIRS.replace(", logger: tensorboard_like", ""))
    overrides = ["generator.sampling_params.temperature=0.5", "learn.steps=3"]
    settings, translation = load_with_translation("theirs.yaml", overrides)
    assert translation is not None
    assert (settings.credit.type, settings.rollout.temperature, settings.learn.steps) == ("rloo", 0.5, 3)
    assert load_settings("frozenlake", ["generator.sampling_params.temperature=0.5"]).rollout.temperature == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("generator: {sampling_params: {}, backend: sglang}", "'sglang' given; only vllm can be followed"),
        ("generator: {sampling_params: {}, http_endpoint: 1}", "1 given; serve a run: turnwise serve RUN"),
        ("generator: {sampling_param: {temperature: 1}}", "skyrl has no such key. Did you mean 'generator.sampling_p"),
        ("generator: {sampling_params: {}}\nenvironment: {env_class: sea}", "expected an environment: one of lake"),
    ],
)
def test_what_it_cannot_follow_is_refused(folder: Path, change: str, words: str) -> None:
    (folder / "theirs.yaml").write_text(f"trainer: {{algorithm: {{advantage_estimator: loop}}}}\n{change}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings("theirs.yaml")
    assert words in str(caught.value)


def test_functions_of_the_user_run_only_with_trust(folder: Path) -> None:
    with block_untrusted_imports(), pytest.raises(UntrustedCodeError, match=r"skyrl\.py"):
        translate_file("theirs.yaml")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{too: credit.type}", "rows.trainer.x.too: unknown setting"),
        ("{}", "rows.trainer.x: expected one of to, consume, ignore and unsupported; got none"),
        ("{to: a.b, ignore: why}", "got ignore and to"),
        ("{ignore: why, convert: as_int}", "expected at most one of convert, compute and values, beside to"),
        ("{ignore: why, when: [1]}", "when needs ignore and otherwise"),
        ("{to: a.b, convert: nowhere}", "there is no function 'nowhere'"),
        ("{to: [}", "cannot be read"),
    ],
)
def test_a_mistake_in_a_format_is_named(folder: Path, row: str, words: str) -> None:
    (folder / "convert" / "skyrl.yaml").write_text(f"{SKYRL.split('rows:')[0]}rows:\n  trainer.x: {row}\n")
    with pytest.raises(ConfigError, match=r"skyrl\.yaml") as caught:
        translate_file("theirs.yaml")
    assert words in str(caught.value)


def test_a_file_of_our_own_imports_no_config_format() -> None:
    code = (
        "import sys; from turnwise.config.load import load_settings; load_settings('frozenlake', ['learn.steps=2']); "
        "print([name for name in sys.modules if name.startswith('turnwise.convert')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_lowest_order_wins_where_a_file_fits_several() -> None:
    found = CONFIG_FORMATS.detect({"algorithm": {}, "trainer": {}})
    assert found is not None
    assert found.name == "verl"
