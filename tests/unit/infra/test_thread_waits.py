"""Short waits are set where the user has chosen none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from turnwise.infra.process_state import limit_spin_wait


def test_waits_are_short_where_nothing_is_chosen() -> None:
    environ: dict[str, str] = {}
    limit_spin_wait(environ)
    assert environ == {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_stays(name: str) -> None:
    environ = {name: "mine"}
    limit_spin_wait(environ)
    assert environ == {name: "mine"}


@pytest.mark.slow
def test_the_command_sets_it_before_torch_is_loaded() -> None:
    program = (
        "import os, sys\n"
        "from turnwise import cli\n"
        "assert 'torch' not in sys.modules\n"
        "cli.main(['envs', '--json'])\n"
        "print(os.environ['GOMP_SPINCOUNT'], file=sys.stderr)\n"
    )
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("1000")
