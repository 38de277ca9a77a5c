"""AgentTrainer's own sections: agents that own their environment. The rest of its files is verl's."""

from __future__ import annotations

from turnwise.config.dialects.table import Given, Native, idle, made, read


def agent_class(given: Given) -> Native:
    return {"rollout.workflow": "agent", "rollout.workflow_args.agent_cls": given.value}


ROWS = (
    read("agent.max_turn", "rollout.max_turns"),
    read("agent.agent_length", "rollout.groups", "agents that play at the same time, each in its own environment"),
    made("agent.agent_cls", "rollout.workflow", agent_class, "agent, with workflow_args.agent_cls"),
    idle("agent.history_length", "an agent keeps its own history"),
    read("env_template", "env, mix.TAG", "an environment for each agent, by name or as a mapping"),
)
