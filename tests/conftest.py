"""For all tests: one cache of made models, one thread each, the slow ones first, and nobody looks at the clock.

Tests run in several processes at once (`make test`), so what they share lies in a folder that all of them know.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .core_seconds import CoreSeconds, used_s

os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts in the background ignore Ctrl-C, and so would every program that a test starts and ends.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: examples may take as long as they take. `make test-fast` tries fewer of
# them, `make fuzz` ten thousand of each.
settings.register_profile("whole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("whole"), max_examples=20)
settings.register_profile("fuzz", settings.get_profile("whole"), max_examples=10_000, print_blob=True)
settings.load_profile("whole")


_TIMES = CoreSeconds()
"""Filled in the process that prints the summary."""
_used_until_s = used_s()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first, so that no process is left alone with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE", help="print and write core-seconds by folder, beside their budgets")


def pytest_runtest_logstart() -> None:
    global _used_until_s
    _used_until_s = used_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A part of a test: set-up, call or tear-down. The report travels to the process that sums up."""
    global _used_until_s
    report = yield
    now_s = used_s()
    report.core_s, _used_until_s = now_s - _used_until_s, now_s  # type: ignore[attr-defined]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _TIMES.add(report.nodeid, getattr(report, "core_s", 0.0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
) -> None:
    # What was interrupted has measured a part only.
    has_ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not config.option.collectonly
    if config.option.times and has_ended:
        _TIMES.write(Path(config.option.times))
        terminalreporter.write_sep("=", "core-seconds by folder")
        for line in _TIMES.format():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of this test run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def turnwise_cache(shared_folder: Path) -> Iterator[str]:
    """Nothing is read from or left in the home folder. A model that one process has made is found by the others."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(shared_folder / "models")
        patch.setenv("TURNWISE_CACHE", folder)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """A killed process loses nothing that it has handed to the system; only a power cut needs the disk.

    Tests of files call `os.fsync` some ten thousand times. That it is called is asserted where it matters.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield
