"""Faults in real runs are found, each by the check that is meant for it; a run without one passes."""

from __future__ import annotations

import pytest

from turnwise.audit.faults import Fault
from turnwise.run.run_audit import FAULTS, inject_faults

pytestmark = pytest.mark.slow


def test_the_catalogue_names_every_fault_once() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) >= 25
    assert len(set(names)) == len(names)


def test_a_run_without_a_fault_is_not_caught() -> None:
    (outcome,) = inject_faults([Fault(name="none", room="none")])
    assert outcome.to_dict() == {"name": "none", "room": "none", "caught": False, "after_steps": None, "by": None}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault: Fault) -> None:
    (outcome,) = inject_faults([fault])
    assert outcome.caught
