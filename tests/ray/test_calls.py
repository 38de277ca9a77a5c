"""What Ray raises about an actor, in our words: who is gone decides who is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.cluster.buffer_worker import ActorConfig
from turnwise.cluster.explorer_pool import WeightsLostError
from turnwise.errors import ClusterError, WorkerLostError

failures: Any = pytest.importorskip(
    "ray.exceptions", reason="the package ray is not installed; `make test-ray` installs it"
)
pytestmark = pytest.mark.ray

SITE = ActorConfig(name="explorer-3", settings_yaml="", run_path=Path("run"), working_folder=Path())
GONE = failures.ActorUnavailableError("Socket closed", b"0" * 16)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (GONE, WorkerLostError),
        (failures.RayTaskError("load", "", GONE), WeightsLostError),
        (failures.RayTaskError("load", "", failures.ObjectLostError("00", None, "")), WeightsLostError),
        (failures.RayTaskError("load", "", ZeroDivisionError("its own")), ClusterError),
        (failures.RayTaskError("load", "", ClusterError("told")), ClusterError),
    ],
    ids=["it is gone", "what it waits for is gone", "what it was given is gone", "its own fault", "ours"],
)
def test_who_is_gone_is_told_apart(raised: Exception, expected: type[Exception]) -> None:
    from turnwise.cluster.ray_cluster import translate_ray_errors  # noqa: PLC0415 - needs the package

    with pytest.raises(expected) as caught, translate_ray_errors(SITE):
        raise raised
    assert type(caught.value) in (expected, *expected.__subclasses__())
    assert isinstance(caught.value, WorkerLostError) == issubclass(expected, WorkerLostError)
    assert isinstance(caught.value, WeightsLostError) == (expected is WeightsLostError)
