"""The files for Slurm and KubeRay name settings that exist, and a run that would be accepted."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from turnwise.checks.settings import find_contradictions
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"


def settings_in(command: str) -> TurnwiseSettings:
    words = re.sub(r"\\\n", " ", command).split()
    recipe = words[words.index("train") + 1]
    given = [word.replace('"$address"', "head:6379") for word in words if re.match(r"[a-z_]+\.[a-z_.]+=", word)]
    return load_settings(recipe, given)


def check(settings: TurnwiseSettings) -> None:
    assert settings.cluster.type == "ray"
    assert find_contradictions(settings) == []


def test_the_slurm_script_is_a_script_and_its_settings_exist() -> None:
    script = FOLDER / "slurm.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    settings = settings_in(text[text.index("turnwise train frozenlake") :])
    check(settings)
    # A learner and explorers fill the nodes, and no more than the nodes.
    cores = int(re.search(r"--nodes=(\d+)", text)[1]) * int(re.search(r"--cpus-per-task=(\d+)", text)[1])  # type: ignore[index]
    assert settings.cluster.explorers * settings.cluster.explorer_cpus + settings.cluster.learner_cpus <= cores  # type: ignore[union-attr]


def test_the_ray_job_parses_and_its_settings_exist() -> None:
    job = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    settings = settings_in(job["spec"]["entrypoint"])
    check(settings)
    cluster = job["spec"]["rayClusterSpec"]
    worker = cluster["workerGroupSpecs"][0]
    assert float(worker["rayStartParams"]["num-cpus"]) >= settings.cluster.explorer_cpus  # type: ignore[union-attr]
    assert worker["replicas"] == settings.cluster.explorers  # type: ignore[union-attr]
    assert float(cluster["headGroupSpec"]["rayStartParams"]["num-cpus"]) >= settings.cluster.learner_cpus  # type: ignore[union-attr]
