"""A checkpoint is asked in a process of its own: it says what an engine says, or why not, and goes."""

from __future__ import annotations

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.clock import HANG_S
from tests.contracts.setting import make_model, model_path, template
from turnwise.engine.local import LocalEngine
from turnwise.errors import EngineError
from turnwise.run import policy_process as policy_voice
from turnwise.run.policy_process import PolicyProcess
from turnwise.types import GenerateRequest, Sampling
from turnwise.view.policy_query import PolicyQuery

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "step-000002"
    shutil.copytree(model_path(), folder / "policy")
    (folder / "progress.json").write_text(json.dumps({"policy_version": 2}))
    return folder


def question(folder: Path, *prefix: int) -> PolicyQuery:
    return PolicyQuery(
        folder=folder,
        dtype="float32",
        prefix_ids=prefix,
        temperature=0.7,
        num_alternatives=4,
        max_new_tokens=6,
    )


def test_it_says_what_an_engine_of_the_same_weights_says_and_outlives_mistakes(checkpoint: Path) -> None:
    voice = PolicyProcess(deadline_s=1200)
    try:
        answer = voice.ask(question(checkpoint, 5, 9, 20))
        process = voice._process
        with pytest.raises(EngineError, match="is gone"):
            voice.ask(question(checkpoint.with_name("step-000009"), 5))
        with pytest.raises(EngineError, match="engine failed"):
            voice.ask(question(checkpoint, 10**6))
        again = voice.ask(question(checkpoint, 5, 9, 20))
        assert voice._process is process
    finally:
        voice.close()
    assert again == answer
    prompt = np.asarray([5, 9, 20], dtype=np.int32)
    here, on = Sampling(temperature=0.7, max_new_tokens=1), Sampling(temperature=0.0, max_new_tokens=6)
    engine = LocalEngine(make_model(), stop_ids=template().stop_ids)
    told = asyncio.run(engine.generate(GenerateRequest(prompt_ids=prompt, sampling=here, seed=1, alternatives=4)))
    greedy = asyncio.run(engine.generate(GenerateRequest(prompt_ids=prompt, sampling=on, seed=1)))
    assert told.alternatives is not None
    assert list(answer.token_ids) == told.alternatives.token_ids[0].tolist()
    assert answer.logprobs == pytest.approx(told.alternatives.logprobs[0].tolist(), abs=1e-4)
    assert list(answer.continuation_ids) == greedy.token_ids.tolist()


def test_an_answer_that_takes_too_long_is_given_up_and_its_process_ended(checkpoint: Path) -> None:
    voice = PolicyProcess(deadline_s=0.01)
    with pytest.raises(EngineError, match=r"no answer within 0\.01 seconds"):
        voice.ask(question(checkpoint, 5))
    assert voice._process is None


def test_a_question_that_waits_when_the_page_is_ended_starts_no_process(checkpoint: Path) -> None:
    voice = PolicyProcess()
    try:
        with ThreadPoolExecutor() as others:
            with voice._lock:
                waiting = others.submit(voice.ask, question(checkpoint, 5))
                voice.close()
            with pytest.raises(EngineError, match="the page has been ended"):
                waiting.result(timeout=HANG_S)
        assert voice._process is None
    finally:
        voice.close()


@pytest.mark.parametrize("room", [1, 2])
def test_near_the_end_of_the_window_it_goes_on_as_far_as_there_is_room(checkpoint: Path, room: int) -> None:
    asked = question(checkpoint, 5, 9, 20, 5, 9, 20)
    holder = policy_voice._Holder()
    whole = holder.answer(asked)
    assert len(whole.continuation_ids) > room
    holder._engine._model.config.max_position_embeddings = len(asked.prefix_ids) + room
    cut = holder.answer(asked)
    assert cut.continuation_ids == whole.continuation_ids[:room]
    assert (cut.token_ids, len(cut.logprobs)) == (whole.token_ids, 4)
    holder._engine._model.config.max_position_embeddings = len(asked.prefix_ids)
    with pytest.raises(EngineError, match="do not fit into the model's 6 positions"):
        holder.answer(asked)


def test_a_model_that_leaves_no_room_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.checks.plan.free_host_bytes", lambda: 1000)
    with pytest.raises(policy_voice.ModelError, match="page takes at most 50%"):
        policy_voice._Holder().answer(question(checkpoint, 5))
