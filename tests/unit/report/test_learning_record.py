"""What is read is what was written, to the bit; what is torn or damaged is told apart; any token can be found."""

from __future__ import annotations

import struct
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.credit.gae import BiLevelGae
from turnwise.credit.group import Grpo
from turnwise.errors import RunError
from turnwise.infra.array_codec import pack_columns, unpack_columns
from turnwise.report import token_log as file_module
from turnwise.report.token_log import TokenLog, TokenLogWriter, truncate_after
from turnwise.report.token_log_codec import HEADER_BYTES, MAGIC, UpdateRecord, decode_block, encode_block, read_header
from turnwise.report.token_log_reader import StepTokens
from turnwise.types import TrajectoryId, UpdateTrace

from .learnt_batches import make_learnt


def written_and_read(learnt: UpdateRecord, step: int = 5) -> StepTokens:
    data = encode_block(step, learnt, num_trained_rows=7, num_trained_tokens=99)
    header = read_header(data)
    assert header is not None
    assert header.num_bytes == len(data)
    return decode_block(header, data[HEADER_BYTES:])


def assert_same_arrays(read: Any, given: Any) -> None:
    for field in fields(given):
        a, b = getattr(read, field.name), getattr(given, field.name)
        if isinstance(b, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=field.name)
            assert a.dtype == b.dtype, field.name


# --- one block -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 4),
    siblings=st.integers(1, 3),
    has=st.fixed_dictionaries(
        dict.fromkeys(("has_critic", "has_reference", "has_penalties", "has_trace"), st.booleans())
    ),
    vocabulary=st.sampled_from([2, 65_536, 2**31 - 1]),
)
def test_written_numbers_are_the_batchs(
    seed: int, groups: int, siblings: int, has: dict[str, bool], vocabulary: int
) -> None:
    learnt = make_learnt(seed, groups=groups, siblings=siblings, vocabulary=vocabulary, **has)
    read = written_and_read(learnt)
    assert (read.step, read.policy_version, read.num_trained_rows, read.num_trained_tokens) == (5, seed + 1, 7, 99)
    assert_same_arrays(read.batch, learnt.batch)
    for a, b in zip(read.experiences(), learnt.experiences, strict=True):
        assert_same_arrays(a, b)
        assert_same_arrays(a.segment, b.segment)
        plain = [f.name for f in fields(b) if not isinstance(getattr(b, f.name), np.ndarray) and f.name != "segment"]
        assert [getattr(a, name) for name in plain] == [getattr(b, name) for name in plain]
    assert (read.has_values, read.has_reference) == (has["has_critic"], has["has_reference"])
    assert (read.trace is None) == (learnt.trace is None)
    if read.trace is not None:
        assert_same_arrays(read.trace, learnt.trace)
    assert (read.token_penalties is None) == (learnt.token_penalties is None)
    if learnt.token_penalties is not None:
        np.testing.assert_array_equal(read.token_penalties, learnt.token_penalties)


def test_numbers_that_are_not_finite_are_written_too() -> None:
    learnt = make_learnt()
    learnt.batch.advantages[learnt.batch.loss_mask] = np.nan
    learnt.batch.returns[learnt.batch.loss_mask] = np.inf
    read = written_and_read(learnt)
    np.testing.assert_array_equal(read.batch.advantages, learnt.batch.advantages)
    np.testing.assert_array_equal(read.batch.returns, learnt.batch.returns)


def test_columns_that_say_nothing_new_cost_nothing() -> None:
    learnt = make_learnt(groups=20)
    assert learnt.trace is not None
    same = replace(
        learnt,
        batch=replace(learnt.batch, returns=learnt.batch.advantages),
        trace=replace(learnt.trace, last_ratios=learnt.trace.first_ratios),
    )
    size, smaller = (len(encode_block(1, each, num_trained_rows=1, num_trained_tokens=1)) for each in (learnt, same))
    assert size - smaller > 2 * 2.5 * learnt.batch.loss_mask.sum()
    assert_same_arrays(written_and_read(same).batch, same.batch)
    assert_same_arrays(written_and_read(same).trace, same.trace)


def test_another_credit_rule_can_be_computed_from_the_record_alone() -> None:
    learnt = make_learnt(has_penalties=True)
    read = written_and_read(learnt)
    values = tuple(np.split(learnt.batch.values, learnt.batch.row_starts[1:-1]))
    penalties = tuple(np.split(learnt.token_penalties, learnt.batch.row_starts[1:-1]))  # type: ignore[arg-type]
    annotations = replace(read.annotations(), values=values, token_penalties=penalties)
    for rule in (Grpo(), BiLevelGae()):
        straight = rule(learnt.experiences, annotations)
        recorded = rule(read.experiences(), read.annotations())
        for a, b in zip(recorded, straight, strict=True):
            np.testing.assert_array_equal(a.advantages, b.advantages)
    for sample, a in zip(read.samples(), np.split(learnt.batch.advantages, learnt.batch.row_starts[1:-1]), strict=True):
        np.testing.assert_array_equal(sample.advantages, a)


def test_a_column_that_is_not_known_is_passed_over_and_one_that_is_missing_is_told() -> None:
    learnt = make_learnt()
    data = encode_block(1, learnt, num_trained_rows=1, num_trained_tokens=1)
    columns = unpack_columns(data[HEADER_BYTES:])

    def read(body: bytes) -> StepTokens:
        header = read_header(data)
        assert header is not None
        return decode_block(replace(header, body_checksum=zlib.crc32(body)), body)

    more = pack_columns({**columns, "token.mood": np.zeros(3, dtype="<f4")})
    assert_same_arrays(read(more).batch, learnt.batch)
    fewer = pack_columns({name: array for name, array in columns.items() if name != "token.id"})
    with pytest.raises(ValueError, match=r"column 'token\.id' is missing"):
        read(fewer)
    shorter = pack_columns({**columns, "token.id": columns["token.id"][1:]})
    with pytest.raises(ValueError, match=r"do not add up to \d+ tokens"):
        read(shorter)


def test_a_block_of_a_later_version_is_refused() -> None:
    data = encode_block(1, make_learnt(), num_trained_rows=1, num_trained_tokens=1)
    header = read_header(data)
    assert header is not None
    with pytest.raises(ValueError, match="has version 2, and this turnwise reads up to 1"):
        decode_block(replace(header, version=2), data[HEADER_BYTES:])


def test_a_column_unpacks_no_more_than_it_announces() -> None:
    data = bytearray(pack_columns({"token.id": np.zeros(10**6, dtype="<i4")}))
    announced = data.index(struct.pack("<Q", 10**6))
    data[announced : announced + 8] = struct.pack("<Q", 10)
    with pytest.raises(ValueError, match="a column of 40 bytes was announced, and there are 41"):
        unpack_columns(bytes(data))


def test_a_trace_of_another_batch_is_refused() -> None:
    short = make_learnt(groups=1).trace
    assert isinstance(short, UpdateTrace)
    with pytest.raises(ValueError, match="UpdateRecord: a batch of"):
        replace(make_learnt(groups=3), trace=short)


# --- token by token --------------------------------------------------------------------------------------------------


def test_iterating_gives_every_token_with_its_numbers_and_its_name() -> None:
    learnt = make_learnt(groups=2)
    read = written_and_read(learnt)
    tokens = list(read)
    assert len(tokens) == len(read) == len(learnt.batch.token_ids)
    number = 0
    for row, experience in enumerate(learnt.experiences):
        for position in range(len(experience.segment)):
            token, at = tokens[number], int(learnt.batch.row_starts[row]) + position
            assert (token.step, token.trajectory, token.segment_index, token.position) == (
                5,
                experience.id.trajectory,
                experience.id.segment_index,
                position,
            )
            assert token.token_id == learnt.batch.token_ids[at]
            assert token.is_sampled is bool(learnt.batch.loss_mask[at])
            assert (token.turn, token.policy_version) == (learnt.batch.turn_ids[at], experience.policy_version)
            assert (token.behavior_logprob, token.advantage, token.return_, token.value, token.reference_logprob) == (
                learnt.batch.behavior_logprobs[at],
                learnt.batch.advantages[at],
                learnt.batch.returns[at],
                learnt.batch.values[at],
                learnt.batch.reference_logprobs[at],
            )
            assert learnt.trace is not None
            assert (token.proximal_logprob, token.first_ratio, token.last_ratio, token.entropy, token.is_clipped) == (
                learnt.trace.proximal_logprobs[at],
                learnt.trace.first_ratios[at],
                learnt.trace.last_ratios[at],
                learnt.trace.entropies[at],
                learnt.trace.is_clipped[at],
            )
            turn = np.flatnonzero(experience.turn_indices == token.turn)
            rewards = (experience.raw_rewards[turn[0]], experience.turn_rewards[turn[0]]) if len(turn) else (0, 0)
            assert (token.raw_reward, token.turn_reward) == rewards
            number += 1


def test_a_learner_that_does_not_tell_leaves_unknown_numbers() -> None:
    tokens = list(written_and_read(make_learnt(has_trace=False)))
    for name in ("proximal_logprob", "first_ratio", "last_ratio", "entropy"):
        assert all(np.isnan(getattr(t, name)) == t.is_sampled for t in tokens)
    assert not any(t.is_clipped for t in tokens)
    assert any(t.advantage for t in tokens)


def test_a_trajectory_and_a_turn_of_it_can_be_found() -> None:
    learnt = make_learnt(groups=3)
    read = written_and_read(learnt)
    wanted = learnt.experiences[2].id.trajectory
    everything = [t for t in read if t.trajectory == wanted]
    assert read.of(wanted) == read.of(str(wanted)) == everything
    assert read.of(wanted, turn=0) == [t for t in everything if t.turn == 0] != []
    assert read.of(wanted, turn=99) == []
    with pytest.raises(RunError, match=r"step 5 has no trajectory '3/lake/train/00/9'\. Did you mean '3/lake"):
        read.of(TrajectoryId(3, "lake/train/00", 9))


def test_reward_shares_are_parts_of_what_the_whole_trajectory_earned_and_lost() -> None:
    learnt = make_learnt(groups=2, siblings=1, seed=3)

    def shares(*rewards: float) -> list[dict[int, float]]:
        """Of the turns of both trajectories; the first has two rows of one turn each."""
        given = iter(rewards)
        turn_rewards = [np.array([next(given, 1.0) for _ in e.turn_indices], dtype="f4") for e in learnt.experiences]
        rows = [replace(e, turn_rewards=r) for e, r in zip(learnt.experiences, turn_rewards, strict=True)]
        read, first = written_and_read(replace(learnt, experiences=rows)), rows[0].id.trajectory
        return [{t.turn: t.reward_share for t in read if (t.trajectory == first) is here} for here in (True, False)]

    assert shares(3.0, -1.0)[0] == {-1: 0, 0: 0.75, 1: -0.25}
    assert shares(0.0, 2.0)[0] == {-1: 0, 0: 0, 1: 1}
    assert shares(0.0, 0.0)[0] == {-1: 0, 0: 0, 1: 0}
    others = shares(3.0, -1.0)[1]
    assert others == {turn: pytest.approx(0 if turn < 0 else 1 / (len(others) - 1)) for turn in others}


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "learning_record.bin"


def write(path: Path, *steps: int, share: Any = "all") -> None:
    path.parent.mkdir(exist_ok=True)
    recorder = TokenLogWriter(path, share)
    for step in steps:
        recorder.write(step, make_learnt(step))


def assert_reads(path: Path, *steps: int) -> None:
    record = TokenLog(path)
    assert record.steps() == list(steps)
    for step in steps:
        assert record.read(step).step == step
        assert_same_arrays(record.read(step).batch, make_learnt(step).batch)


def test_any_step_can_be_read_and_a_missing_one_is_an_error_that_names_those_there_are(path: Path) -> None:
    write(path, 1, 2, 3, 5, 8)
    assert_reads(path, 1, 2, 3, 5, 8)
    with pytest.raises(RunError, match=r"learning_record\.bin has no step 4; it has steps 1 to 3, 5, 8\."):
        TokenLog(path).read(4)
    with pytest.raises(RunError, match=r"there is no learning record .* unless report\.tokens is 'none'"):
        TokenLog(path.with_name("other.bin")).steps()


def test_a_torn_tail_is_passed_over_and_cut_off_by_the_next_writer(path: Path) -> None:
    write(path, 1, 2)
    whole = path.read_bytes()
    write(path, 3)
    block = path.read_bytes()[len(whole) :]
    for length in (1, HEADER_BYTES - 1, HEADER_BYTES, len(block) - 1):
        path.write_bytes(whole + block[:length])
        assert_reads(path, 1, 2)
        write(path, 4)
        assert_reads(path, 1, 2, 4)
        assert path.read_bytes().startswith(whole + MAGIC)


@pytest.mark.parametrize("state", ["missing", "behind", "torn", "ahead", "foreign", "flipped"])
def test_the_index_is_never_believed(path: Path, state: str) -> None:
    write(path, 1, 2, 3)
    index = path.with_suffix(".index")
    right = index.read_bytes()
    wrong = {
        "behind": right[:-32],
        "torn": right[:-5],
        "ahead": right + struct.pack("<qQQQ", 4, path.stat().st_size, path.stat().st_size + 100, 0),
        "foreign": struct.pack("<qQQQ", 1, 0, 77, 0) * 3,
        # The second entry says that it is of step 6.
        "flipped": right[:32] + bytes([right[32] ^ 4]) + right[33:],
    }
    if state == "missing":
        index.unlink()
    else:
        index.write_bytes(wrong[state])
    assert_reads(path, 1, 2, 3)
    write(path, 4)
    assert_reads(path, 1, 2, 3, 4)
    assert len(index.read_bytes()) == 4 * 32


def test_the_index_opens_a_step_without_looking_at_the_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, *range(1, 30))
    looked: list[int] = []
    plain = file_module._header_at
    monkeypatch.setattr(file_module, "_header_at", lambda file, at, size: looked.append(at) or plain(file, at, size))
    assert TokenLog(path).read(7).step == 7
    assert len(looked) <= 3


def test_a_damaged_block_is_told_and_the_others_can_be_read(path: Path) -> None:
    write(path, 1, 2, 3)
    ends = [place.end for place in file_module._find_blocks(path)]
    data = bytearray(path.read_bytes())
    data[ends[0] + HEADER_BYTES + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"step 2 \(bytes \d+ to \d+\) is damaged: its checksum is wrong\. Other steps"):
        TokenLog(path).read(2)
    for step in (1, 3):
        assert_same_arrays(TokenLog(path).read(step).batch, make_learnt(step).batch)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_damaged_header_hides_its_own_block_alone(path: Path, has_index: bool) -> None:
    write(path, 1, 2, 3)
    places = file_module._find_blocks(path)
    data = bytearray(path.read_bytes())
    data[places[1].start + 9] ^= 1
    path.write_bytes(data)
    if not has_index:
        path.with_suffix(".index").unlink()
    with pytest.raises(RunError, match="its header is gone" if has_index else "has no step 2; it has steps 1, 3"):
        TokenLog(path).read(2)
    assert_same_arrays(TokenLog(path).read(3).batch, make_learnt(3).batch)
    write(path, 4)
    for step in (1, 3, 4):
        assert_same_arrays(TokenLog(path).read(step).batch, make_learnt(step).batch)


def test_bytes_that_are_no_block_are_found(path: Path) -> None:
    write(path, 1, 2, 3)
    whole, places = path.read_bytes(), file_module._find_blocks(path)
    assert TokenLog(path).find_gaps(with_end=True) == []
    for place, is_end in zip(places, (False, False, True), strict=True):
        path.write_bytes(whole[: place.start + 1] + b"?" + whole[place.start + 2 :])
        gaps = [(place.start, place.end)]
        assert TokenLog(path).find_gaps(with_end=True) == gaps
        # Behind the last block: perhaps a process was killed while it wrote.
        assert TokenLog(path).find_gaps(with_end=False) == ([] if is_end else gaps)


def test_magic_bytes_across_two_chunks_are_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, 1, 2)
    path.with_suffix(".index").unlink()
    for chunk in (4, 5, 7, 64):
        monkeypatch.setattr(file_module, "_CHUNK", chunk)
        for junk in (b"x", b"TWL", b"TWLR", b"xyzTWLRTW"):
            other = path.with_name(f"{chunk}{len(junk)}.bin")
            other.write_bytes(junk + path.read_bytes())
            assert_reads(other, 1, 2)


def test_a_resumed_run_forgets_later_steps_and_goes_on(path: Path) -> None:
    write(path, 1, 2, 3, 4)
    truncate_after(path, after=2)
    assert_reads(path, 1, 2)
    write(path, 3)
    assert_reads(path, 1, 2, 3)
    truncate_after(path, after=9)
    assert_reads(path, 1, 2, 3)
    truncate_after(path, after=0)
    assert_reads(path)
    with pytest.raises(RunError, match="has no step 1; it has none yet"):
        TokenLog(path).read(1)
    truncate_after(path.with_name("missing.bin"), after=0)


def test_a_step_that_was_written_twice_counts_as_it_was_written_last(path: Path) -> None:
    path.parent.mkdir()
    recorder = TokenLogWriter(path, "all")
    for seed in (1, 2):
        recorder.write(1, make_learnt(seed))
    assert_same_arrays(TokenLog(path).read(1).batch, make_learnt(2).batch)


def test_a_disk_that_fails_ends_the_record_and_not_the_run(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.write_text("a file where the folder should be")
    recorder = TokenLogWriter(path, "all")
    recorder.write(1, make_learnt())
    assert "the learning record ends before step 1: Cannot write" in caplog.text
    path.parent.unlink()
    recorder.write(2, make_learnt())
    assert not path.exists()


def test_nothing_is_written_where_nothing_is_asked_for(path: Path) -> None:
    write(path, 1, 2, share="none")
    assert list(path.parent.iterdir()) == []
