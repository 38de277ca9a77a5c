"""Groups of environments: their layout, their steps in any order, and how episodes end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from turnwise.envs.bandit import Bandit
from turnwise.envs.base import BaseEnv
from turnwise.errors import ConfigError, EnvError, WorkflowError
from turnwise.rollout.env_manager import EnvConfigs, EnvStateManager
from turnwise.rollout.episode import Limits
from turnwise.rollout_io import EnvInput, EnvOutput
from turnwise.types import StopReason

from .worlds import BrokenStart, WordWorld, make_states, slippery


def act(env_id: int, *actions: str, **options: Any) -> EnvInput:
    return EnvInput(env_id=env_id, actions=actions, **options)


def layout_of(text: str) -> str:
    return text.replace("P", "_")


# --- layout ----------------------------------------------------------------------------------------------------------


def test_ids_groups_and_tags_are_laid_out_in_order() -> None:
    def make(tag: str, _split: str) -> BaseEnv:
        return Bandit() if tag == "bandit" else WordWorld()

    configs = EnvConfigs(tags=("words", "bandit"), n_groups=(2, 1))
    outputs = make_states(make, groups=3, group_size=2, env_configs=configs, first_seed=7).reset()
    assert [(o.env_id, o.group_id, o.tag) for o in outputs] == [
        (0, 0, "words"),
        (1, 0, "words"),
        (2, 1, "words"),
        (3, 1, "words"),
        (4, 2, "bandit"),
        (5, 2, "bandit"),
    ]
    assert [o.history[0].state for o in outputs[:4]] == ["seed 7 at 0"] * 2 + ["seed 8 at 0"] * 2
    assert all(len(o.history) == 1 and o.penalty == 0 for o in outputs)


def test_entries_read_like_dictionaries() -> None:
    (first, *_) = make_states().reset()
    assert {"env_id", "history", "group_id", "tag", "penalty"} <= set(first)
    assert (first["env_id"], first["group_id"], first["tag"], first["penalty"]) == (0, 0, "words", 0)
    assert "history" in first
    assert "nothing" not in first
    assert (first.get("tag"), first.get("nothing", 3)) == ("words", 3)
    plain = dict(first)
    assert plain == dict(first.items())
    assert type(plain["history"]) is list
    assert plain["history"][0]["state"] == "seed 0 at 0"
    assert EnvOutput.read(plain) == first
    with pytest.raises(KeyError, match=r"EnvOutput has no 'histroy'\. Did you mean 'history'"):
        first["histroy"]


LAYOUT = {
    "env_groups": 3,
    "group_size": 2,
    "env_configs": {"tags": ["FrozenLake", "SimpleSokoban"], "n_groups": [2, 1]},
}


@pytest.mark.parametrize("config", [LAYOUT, {"train": LAYOUT}, {"es_manager": {"train": LAYOUT, "val": {}}}])
def test_the_layout_of_ragen_makes_environments_by_their_names_there(config: dict[str, Any]) -> None:
    outputs = EnvStateManager(config).reset(seed=1)
    assert [(o["env_id"], o["group_id"], o["tag"]) for o in outputs[1:5]] == [
        (1, 0, "FrozenLake"),
        (2, 1, "FrozenLake"),
        (3, 1, "FrozenLake"),
        (4, 2, "SimpleSokoban"),
    ]
    assert "#" in outputs[-1]["history"][0]["state"]
    assert len(EnvStateManager(**LAYOUT).reset()) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env_groups": None}, "env_groups is missing"),
        ({"group_size": 0}, "group_size: 0 given; expected a whole number above 0"),
        ({"env_configs": ["FrozenLake"]}, "env_configs: .* expected a section with tags and n_groups"),
        ({"env_configs": {"tag": ["FrozenLake"]}}, "env_configs.tag: there is no such key. Did you mean 'tags'"),
        ({"env_configs": {"tags": "FrozenLake"}}, "env_configs.tags: 'FrozenLake' given; expected a list"),
        ({"env_configs": {"tags": ["a", "b"]}}, "env_configs.n_groups: None given"),
    ],
)
def test_a_wrong_layout_is_told_by_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnvStateManager(**{**LAYOUT, **change})


@pytest.mark.parametrize(("n_groups", "groups"), [((1, 1), 3), ((2,), 3)])
def test_group_counts_must_add_up(n_groups: tuple[int, ...], groups: int) -> None:
    configs = EnvConfigs(tags=tuple("ab"[: len(n_groups)]), n_groups=n_groups)
    with pytest.raises(ConfigError, match=f"env_groups = {groups}"):
        make_states(groups=groups, env_configs=configs)


def test_every_tag_needs_a_group_count() -> None:
    with pytest.raises(ConfigError, match="2 tags and 1 n_groups"):
        EnvConfigs(tags=("a", "b"), n_groups=(1,))


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_siblings_share_the_layout_and_not_the_dynamics() -> None:
    states = make_states(
        slippery, groups=2, group_size=12, env_configs=EnvConfigs(tags=("lake",), n_groups=(2,)),
        limits=Limits(max_turns=9),
    )  # fmt: skip
    first = states.reset(seed=3)
    assert len({o.history[0].state for o in first[:12]}) == 1
    assert first[0].history[0].state != first[12].history[0].state
    after = states.step([act(env_id, "Right") for env_id in range(12)])
    assert len({o.history[-1].state for o in after}) > 1


def play_right(states: EnvStateManager, outputs: list[EnvOutput]) -> list[list[str]]:
    while outputs:
        outputs = states.step([act(o.env_id, "Right") for o in outputs])
    return [[entry.state for entry in s.history] for s in states.get_rollout_states()]


def make_lake() -> EnvStateManager:
    return make_states(
        slippery, groups=1, group_size=6, env_configs=EnvConfigs(tags=("lake",), n_groups=(1,)),
        limits=Limits(max_turns=4),
    )  # fmt: skip


def test_the_same_seed_plays_the_same_episodes() -> None:
    one, other = make_lake(), make_lake()
    assert play_right(one, one.reset(seed=5)) == play_right(other, other.reset(seed=5))


def test_a_later_rollout_of_the_same_tasks_has_other_dice() -> None:
    states = make_lake()
    first, second = play_right(states, states.reset(seed=5)), play_right(states, states.reset(seed=5))
    assert [layout_of(h[0]) for h in first] == [layout_of(h[0]) for h in second]
    assert first != second


def test_reset_counts_seeds_on_and_a_given_seed_moves_the_counter() -> None:
    states = make_states(first_seed=100)

    def seeds(outputs: list[EnvOutput]) -> list[str]:
        return [o.history[0].state.split()[1] for o in outputs[::2]]

    assert seeds(states.reset()) == ["100", "101"]
    assert seeds(states.reset()) == ["102", "103"]
    assert seeds(states.reset(seed=7)) == ["7", "8"]
    assert seeds(states.reset()) == ["9", "10"]


def test_rollouts_are_numbered() -> None:
    states = make_states(groups=1, group_size=1)
    numbers = []
    for rollout in (None, None, 9, None):
        tasks = states._tasks.take(1)
        states.begin(tasks, rollout=rollout)
        states.step([act(0, "win")])
        numbers.append(states.get_rollout_states()[0].id.rollout)
    assert numbers == [0, 1, 9, 10]


# --- steps -----------------------------------------------------------------------------------------------------------


def test_any_subset_in_any_order() -> None:
    states = make_states(groups=3, group_size=2, limits=Limits(max_turns=100))
    states.reset()
    rng, turns = random.Random(0), [0] * 6
    for _ in range(30):
        chosen = rng.sample(range(6), rng.randint(1, 6))
        outputs = states.step([act(env_id, "stay") for env_id in chosen])
        assert [o.env_id for o in outputs] == chosen
        for output in outputs:
            turns[output.env_id] += 1
            assert output.history[-1].state.endswith(f"at {turns[output.env_id]}")
            assert len(output.history) == turns[output.env_id] + 1


def test_only_episodes_that_go_on_come_back() -> None:
    states = make_states()
    states.reset()
    outputs = states.step([act(3, "win"), act(1, "go"), act(0, "lose")])
    assert [o.env_id for o in outputs] == [1]


def test_mappings_are_understood() -> None:
    states = make_states(invalid_penalty=-0.5)
    states.reset()
    (output,) = states.step([{"env_id": 1, "actions": ["go", "stay"], "llm_response": "<answer>go"}])
    assert output.history[0].actions == ("go", "stay")
    assert output.history[0].llm_response == "<answer>go"
    (output,) = states.step([{"env_id": 1, "actions": []}])
    assert (output.history[1].actions, output.history[1].penalty) == ((), -0.5)
    with pytest.raises(WorkflowError, match="list of strings"):
        states.step([{"env_id": 1, "actions": "go"}])
    with pytest.raises(WorkflowError, match="EnvInput: the given dictionary has no 'env_id'; it has 'actions'"):
        states.step([{"actions": ["go"]}])
    with pytest.raises(WorkflowError, match="int given; expected EnvInput, or a dictionary with env_id"):
        states.step([3])  # type: ignore[list-item]


def test_several_actions_stop_at_the_end_of_the_episode() -> None:
    states = make_states(groups=1)
    states.reset()
    assert states.step([act(0, "go", "win", "go")]) == []
    states.stop(1, StopReason.CONTEXT_OVERFLOW)
    first, _ = states.get_rollout_states()
    assert first.history[0].actions == ("go", "win")
    assert first.history[0].reward == 2.0
    assert first.metrics["words/num_actions"] == 2
    assert first.is_success


def test_actions_beyond_the_budget_are_not_played() -> None:
    states = make_states(groups=1, group_size=1, limits=Limits(max_turns=9, max_actions=4, max_actions_per_turn=3))
    (first,) = states.reset()
    assert first.history[0].actions_left == 4
    (output,) = states.step([act(0, "go", "go", "go")])
    assert output.history[-1].actions_left == 1
    assert states.step([act(0, "stay", "win")]) == []
    (state,) = states.get_rollout_states()
    assert state.history[1].actions == ("stay",)
    assert (state.stop_reason, state.is_success) == (StopReason.MAX_ACTIONS, False)
    assert state.history[-1].actions_left == 0


@pytest.mark.parametrize(
    ("env_input", "penalty"),
    [
        (act(0, "go"), 0.0),
        (act(0, "nonsense"), -0.5),
        (act(0, "nonsense", "nonsense", "go"), -0.5),
        (act(0, "go", is_well_formed=False), -0.5),
        (act(0, "nonsense", is_well_formed=False), -0.5),
        (act(0, is_well_formed=False), -0.5),
    ],
)
def test_a_turn_is_fined_once(env_input: EnvInput, penalty: float) -> None:
    states = make_states(groups=1, group_size=1, invalid_penalty=-0.5)
    states.reset()
    (output,) = states.step([env_input])
    assert output.history[0].penalty == penalty
    (output,) = states.step([env_input])
    assert output.penalty == 2 * penalty
    assert output.history[0].reward == sum(action == "go" for action in env_input.actions)


def test_an_answer_without_actions_changes_nothing_but_takes_a_turn() -> None:
    states = make_states(groups=1, group_size=1, limits=Limits(max_turns=2))
    (first,) = states.reset()
    (output,) = states.step([act(0, is_well_formed=False)])
    assert output.history[-1].state == first.history[-1].state
    assert output.history[0].is_valid is False
    assert states.step([act(0, is_well_formed=False)]) == []
    assert states.get_rollout_states()[0].stop_reason is StopReason.MAX_TURNS


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "reason", "is_success"),
    [
        ([("win",)], StopReason.TERMINATED, True),
        ([("lose",)], StopReason.TERMINATED, False),
        ([("timeout",)], StopReason.ENV_TRUNCATED, False),
        ([("crash",)], StopReason.ENV_ERROR, False),
        ([("go", "crash")], StopReason.ENV_ERROR, False),
        ([("go", "go"), ("go", "go")], StopReason.MAX_ACTIONS, False),
        ([("go",), ("go",), ("go",)], StopReason.MAX_TURNS, False),
        ([(), (), ()], StopReason.MAX_TURNS, False),
        # Several causes at once: the order of `rollout/episode.py`.
        ([("go", "go"), ("go", "crash")], StopReason.ENV_ERROR, False),
        ([("go", "go"), ("go", "win")], StopReason.TERMINATED, True),
        ([("go", "go"), ("go", "timeout")], StopReason.ENV_TRUNCATED, False),
        ([("go",), ("go",), ("win",)], StopReason.TERMINATED, True),
        ([("go",), ("go",), ("timeout",)], StopReason.ENV_TRUNCATED, False),
        ([("go",), ("go",), ("go", "go")], StopReason.MAX_ACTIONS, False),
        ([("go",), ("go",), ("crash",)], StopReason.ENV_ERROR, False),
    ],
)
def test_why_an_episode_ends(turns: list[tuple[str, ...]], reason: StopReason, is_success: bool) -> None:
    limits = Limits(max_turns=3, max_actions=4, max_actions_per_turn=2)
    states = make_states(groups=1, group_size=1, limits=limits)
    states.reset()
    going_on = [bool(states.step([act(0, *actions)])) for actions in turns]
    assert going_on == [True] * (len(turns) - 1) + [False]
    (state,) = states.get_rollout_states()
    assert (state.stop_reason, state.is_success) == (reason, is_success)
    assert len(state.history) == len(turns) + 1
    assert bool(state.failure) is reason.is_error


def test_a_crash_is_data_and_the_others_go_on() -> None:
    states = make_states(groups=1, group_size=3)
    states.reset()
    outputs = states.step([act(0, "go"), act(1, "crash"), act(2, "go")])
    assert [o.env_id for o in outputs] == [0, 2]
    states.step([act(0, "win"), act(2, "lose")])
    won, crashed, lost = states.get_rollout_states()
    assert (won.is_success, lost.is_success) == (True, False)
    assert crashed.stop_reason is StopReason.ENV_ERROR
    assert "the world broke" in crashed.failure
    assert crashed.history[0].reward == 0


def test_a_bad_reward_is_data() -> None:
    class NotANumber(WordWorld):
        def step(self, action: str) -> tuple[Any, ...]:
            return "", float("nan"), False, self._info()

    states = make_states(lambda *_: NotANumber(), groups=1, group_size=1)
    states.reset()
    assert states.step([act(0, "go")]) == []
    assert states.get_rollout_states()[0].stop_reason is StopReason.ENV_ERROR


def test_a_failing_reset_is_data_and_the_others_start() -> None:
    states = make_states(lambda *_: BrokenStart(), groups=2, group_size=2)
    assert [o.env_id for o in states.reset()] == [0, 1]
    with pytest.raises(EnvError, match="over"):
        states.step([act(2, "go")])
    states.step([act(0, "win"), act(1, "lose")])
    ends = states.get_rollout_states()
    assert [s.stop_reason for s in ends] == [StopReason.TERMINATED] * 2 + [StopReason.ENV_ERROR] * 2
    assert "no such level" in ends[2].failure
    assert len(ends[2].history) == 1
    assert [o.env_id for o in states.reset(seed=4)] == [0, 1]


def test_unknown_finished_and_running_episodes_are_named() -> None:
    states = make_states(groups=1)
    with pytest.raises(EnvError, match="Call reset"):
        states.step([act(0, "go")])
    states.reset()
    with pytest.raises(EnvError, match="env_id 5 given; this rollout has 0 to 1"):
        states.step([act(5, "go")])
    with pytest.raises(EnvError, match="still running"):
        states.get_rollout_states()
    states.step([act(0, "win")])
    for again in (lambda: states.step([act(0, "go")]), lambda: states.stop(0, StopReason.CONTEXT_OVERFLOW)):
        with pytest.raises(EnvError, match="is over"):
            again()
    assert states.get_rollout_states([0])[0].is_success


def test_stop_from_outside() -> None:
    states = make_states(groups=1, group_size=1)
    states.reset()
    states.step([act(0, "go")])
    states.stop(0, StopReason.ENGINE_ERROR, "no answer")
    (state,) = states.get_rollout_states()
    assert (state.stop_reason, state.failure) == (StopReason.ENGINE_ERROR, "no answer")
    assert len(state.history) == 2


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_of_a_rollout() -> None:
    states = make_states(groups=2, group_size=2)
    states.reset()
    states.step([act(0, "nonsense"), act(1, "go"), act(2, "lose"), act(3, "lose")])
    states.step([act(0, "go"), act(1, "win")])
    states.step([act(0, "lose")])
    metrics = [s.metrics for s in states.get_rollout_states()]
    assert [m["words/success"] for m in metrics] == [0, 1, 0, 0]
    assert [m["words/pass@2"] for m in metrics] == [1, 1, 0, 0]
    assert [m["words/num_actions"] for m in metrics] == [3, 2, 1, 1]
    assert metrics[0]["words/action_is_valid"] == pytest.approx(2 / 3)
    assert metrics[1]["words/action_is_effective"] == 1


def test_closing_closes_every_environment() -> None:
    closed: list[int] = []

    class Closing(WordWorld):
        def close(self) -> None:
            closed.append(1)

    states = make_states(lambda *_: Closing(), groups=2, group_size=2)
    states.reset()
    states.step([act(0, "go", "go")])
    assert states.env_seconds > 0
    states.close()
    assert len(closed) == 4


def test_environments_are_used_again() -> None:
    made: list[str] = []

    def make(tag: str, split: str) -> WordWorld:
        made.append(f"{tag}/{split}")
        return WordWorld()

    states = make_states(make, groups=1, group_size=2, split="eval")
    states.reset()
    states.step([act(0, "go")])
    assert states.reset()[0].history[0].state == "seed 1 at 0"
    assert made == ["words/eval"] * 2
    states.step([act(0, "crash")])
    states.reset()
    assert made == ["words/eval"] * 3, "one that failed is not"


def test_every_episode_says_what_it_is_about() -> None:
    """Arms have other names in evaluation: the first message must name the ones that are there."""
    manager = EnvStateManager(
        lambda _tag, _split: Bandit(),
        env_groups=1,
        group_size=1,
        env_configs=EnvConfigs(tags=("bandit",), n_groups=(1,)),
        limits=Limits(max_turns=1),
        split="eval",
    )
    (output,) = manager.reset()
    assert set(output.about.action_names or ()) == {"Librarian", "Trader"}
    assert output.about.instructions
