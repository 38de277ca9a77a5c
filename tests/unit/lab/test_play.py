"""What is played follows the world, the policy and the contract of an Experience."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.lab.mdps import WORLDS, Plays, World, draw_policy, play_groups, solve

every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)


def play(world: World, *, num_groups: int = 6, group_size: int = 4, seed: int = 0) -> Plays:
    policy = draw_policy(world, np.random.default_rng(1))
    starts = [world.starts[group % len(world.starts)] for group in range(num_groups)]
    return play_groups(world, policy, starts, group_size=group_size, rollout=7, rng=np.random.default_rng(seed))


@every_world
def test_experiences_tell_what_the_world_did(world: World) -> None:
    policy = draw_policy(world, np.random.default_rng(1))
    for experience in play(world).experiences:
        segment, states = experience.segment, experience.turn_states.astype(int)
        assert segment.loss_mask.reshape(-1, 3).tolist() == [[False, True, True]] * len(states)
        assert (segment.token_ids[~segment.loss_mask] - 2).tolist() == states.tolist()
        tokens = segment.token_ids[segment.loss_mask].reshape(-1, 2)
        actions = 2 * tokens[:, 0] + tokens[:, 1]
        for turn, (state, action) in enumerate(zip(states, actions, strict=True)):
            assert not world.is_final[state]
            if turn + 1 < len(states):
                assert world.transitions[state, action, states[turn + 1]] > 0
                assert experience.turn_rewards[turn] == np.float32(world.rewards[state, action, states[turn + 1]])
            else:
                possible = world.rewards[state, action][world.transitions[state, action] > 0]
                assert experience.turn_rewards[turn] in possible.astype(np.float32)
        sampled = segment.behavior_logprobs[segment.loss_mask].reshape(-1, 2).sum(axis=1)
        np.testing.assert_allclose(np.exp(sampled), policy.action_probs[states, actions], rtol=1e-5)


@pytest.mark.slow
@every_world
def test_every_cell_is_played_as_often_as_the_truth_says(world: World) -> None:
    policy = draw_policy(world, np.random.default_rng(1))
    plays = play(world, num_groups=3, group_size=2000)
    exact = solve(world, policy, np.bincount(world.starts, minlength=len(world.states)) / len(world.starts))
    shares = np.bincount(np.concatenate(plays.cells), minlength=exact.visits.size) / 6000
    # A cell is visited at most once per episode, so its share spreads like that of a coin.
    spread = np.sqrt(exact.visits.ravel() / 6000)
    assert (np.abs(shares - exact.visits.ravel()) <= 5 * spread + 1e-3).all()
    returns = [e.turn_rewards.sum() for e in plays.experiences]
    expected = np.mean([exact.values[world.horizon, start, 0] for start in world.starts])
    assert np.mean(returns) == pytest.approx(expected, abs=4 * np.std(returns) / np.sqrt(6000))


def test_siblings_share_a_start_a_group_and_a_greedy_play() -> None:
    world = WORLDS["corridor"]
    experiences = play(world).experiences
    policy = draw_policy(world, np.random.default_rng(1))
    for group in range(6):
        siblings = experiences[4 * group : 4 * group + 4]
        assert {e.id.trajectory.group for e in siblings} == {f"7/corridor/train/{group}"}
        assert {int(e.turn_states[0]) for e in siblings} == {world.starts[group % 3]}
        state, greedy_return = world.starts[group % 3], 0.0
        for _ in range(world.horizon):
            first = int(policy.token_probs[state, 0, 1] > 0.5)
            action = 2 * first + int(policy.token_probs[state, 1 + first, 1] > 0.5)
            following = int(world.transitions[state, action].argmax())
            greedy_return += world.rewards[state, action, following]
            state = following
        assert [e.greedy_return for e in siblings] == pytest.approx([greedy_return] * 4)
    assert len({e.id for e in experiences}) == len(experiences)


def test_the_seed_decides() -> None:
    first, again, other = (np.concatenate(play(WORLDS["lake"], seed=seed).cells).tolist() for seed in (0, 0, 1))
    assert first == again != other
