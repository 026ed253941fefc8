"""One copy of an environment as a team, in the process of a worker; those of Gymnasium are teams of one agent."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from uavlab.workers.description import GOES_ON, TERMINATED, TRUNCATED, Agent, Description, Rows
from uavlab.workers.spaces import Codec, Refusal

ALONE = "agent"  # name of the agent of a Gymnasium environment


class Alone:
    """A Gymnasium environment with the functions of a parallel environment of PettingZoo."""

    possible_agents = (ALONE,)

    def __init__(self, env: Any) -> None:
        self.env, self.unwrapped = env, env.unwrapped

    def observation_space(self, agent: str) -> Any:
        """Return the space of observations."""
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        """Return the space of actions."""
        return self.env.action_space

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed)
        return {ALONE: obs}, {ALONE: info}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the environment."""
        return tuple({ALONE: result} for result in self.env.step(actions[ALONE]))


def make(kind: str, target: str, factory: str, arguments: Mapping[str, Any]) -> Any:
    """Return a new environment with the functions of a parallel environment.

    Raises:
        Refusal: There is none of this name, or it is of another kind.
    """
    if kind == "gymnasium":
        import gymnasium

        env = gymnasium.make(target, disable_env_checker=True, **arguments)
    else:
        env = _call(_factory(target, factory), f"{target}:{factory}", arguments)
    if hasattr(env, "possible_agents") and hasattr(env, "reset") and not hasattr(env, "agent_iter"):
        return env
    if hasattr(env, "possible_agents"):
        raise Refusal(
            "its agents act one after the other; expected a parallel environment, such as aec_to_parallel(env)"
        )
    if not (hasattr(env, "observation_space") and hasattr(env, "step") and hasattr(env, "reset")):
        raise Refusal(
            f"made a {type(env).__name__}; expected an environment of Gymnasium, or a parallel one of PettingZoo"
        )
    return Alone(env)


def _factory(target: str, factory: str) -> Callable[..., Any]:
    if target.endswith(".py"):
        path = Path(target).expanduser()
        if not path.is_file():
            raise Refusal(f"no file {path.resolve()}; name one that exists, or an absolute path")
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # no folder beside the file of a user
        spec.loader.exec_module(module)
        sys.dont_write_bytecode = before
    else:
        try:
            module = importlib.import_module(target)
        except ModuleNotFoundError as error:
            raise Refusal(f"no module named {error.name!r}; install its package, or correct the name") from error
    thing: Any = module
    for part in factory.split("."):
        if not hasattr(thing, part):
            raise Refusal(f"{target} has no {factory}; name a function that makes an environment")
        thing = getattr(thing, part)
    return thing


def _call(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Any:
    """Return what a factory makes; unknown arguments are refused with the known ones."""
    try:
        known = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        known = ()  # type: ignore[assignment]
    names = [each.name for each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    free = not known or any(each.kind is each.VAR_KEYWORD for each in known)
    if not free and (unknown := sorted(arguments.keys() - set(names))):
        raise Refusal(f"{name} takes no {unknown[0]!r}; its arguments: {', '.join(names) or 'none'}")
    return factory(**arguments)


class Team:
    """A copy of an environment, whose results go to a row of shared memory.

    Attributes:
        env: The environment.
        agents: Its agents, those of a group one after the other.
        codecs: Of each agent.
    """

    def __init__(self, env: Any) -> None:
        """Read the spaces of all agents.

        Raises:
            Refusal: One is not served, or some agents choose and others act continuously.
        """
        self.env = env
        names = [*env.possible_agents]
        if not names:
            raise Refusal("it has no agents; expected possible_agents with at least one")
        each = {name: Codec(name, env.observation_space(name), env.action_space(name)) for name in names}
        if len({codec.choices > 0 for codec in each.values()}) > 1:
            raise Refusal("some agents choose moves and others act continuously; expected one kind for all")
        groups = _groups(each)
        self.codecs = [each[name] for group in groups.values() for name in group]
        self.agents = [
            Agent(codec.agent, group, codec.obs, codec.action, codec.choices)
            for group, members in groups.items()
            for codec in (each[name] for name in members)
        ]
        self.live: list[int] = []

    def describe(self) -> Description:
        """Return what the other process needs to know."""
        return Description(tuple(self.agents), horizon_of(self.env), isinstance(self.env, Alone))

    def reset(self, seed: int, rows: Rows, row: int) -> None:
        """Start an episode.

        Raises:
            Refusal: Not all agents are there.
        """
        obs, infos = self.env.reset(seed=seed)
        missing = [agent.name for agent in self.agents if agent.name not in obs]
        if missing:
            raise Refusal(
                f"reset returned no observation of {missing[0]}; expected one of each of possible_agents: start all of "
                "them in every episode"
            )
        self.live = [*range(len(self.agents))]
        rows.reward[row] = rows.end[row] = rows.obs[row] = rows.legal[row] = 0
        for number in self.live:
            self._observe(number, obs, infos, rows, row)

    def step(self, rows: Rows, row: int) -> None:
        """Step the environment by the actions in the row.

        Raises:
            Refusal: The results are not those of the agents that go on.
        """
        actions = {self.agents[n].name: self.codecs[n].act(rows.action[row, n]) for n in self.live}
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        rows.reward[row] = rows.end[row] = 0
        for number in {*range(len(self.agents))} - {*self.live}:
            rows.obs[row, number] = 0
            rows.legal[row, number] = False
            rows.legal[row, number, :1] = True
        going = []
        for number in self.live:
            name = self.agents[number].name
            if any(name not in results for results in (rewards, terminations, truncations)):
                raise Refusal(
                    f"step returned no reward or end of {name}, which had not ended; expected those of every agent "
                    "that goes on: keep the agent, and set terminated when it leaves"
                )
            rows.reward[row, number] = rewards[name]
            end = TERMINATED if terminations[name] else TRUNCATED if truncations[name] else GOES_ON
            rows.end[row, number] = end
            if end == GOES_ON:
                going.append(number)
                if name not in obs:
                    raise Refusal(
                        f"step returned no observation of {name}, which goes on; expected one of every agent that goes "
                        "on: keep the agent, and set terminated when it leaves"
                    )
            if name in obs:
                self._observe(number, obs, infos, rows, row)
        known = {agent.name for agent in self.agents}
        if new := [name for name in obs if name not in known]:
            raise Refusal(
                f"step returned the new agent {new[0]}; expected those of possible_agents alone: list it there, and "
                "start it in reset"
            )
        self.live = going

    def _observe(self, number: int, obs: Mapping[str, Any], infos: Any, rows: Rows, row: int) -> None:
        agent, codec = self.agents[number], self.codecs[number]
        numbers, mask = codec.observe(obs[agent.name], infos.get(agent.name) if isinstance(infos, dict) else None)
        rows.obs[row, number, : codec.obs] = numbers
        if codec.choices:
            rows.legal[row, number, : codec.choices] = True if mask is None else mask


def _groups(codecs: Mapping[str, Codec]) -> dict[str, list[str]]:
    """Return agents by group: those whose names differ by their number alone, and whose spaces have equal sizes."""
    groups: dict[tuple[str, int, int, int], list[str]] = {}
    for name, codec in codecs.items():
        stem = re.sub(r"[_-]?\d+$", "", str(name)) or str(name)
        groups.setdefault((stem, codec.obs, codec.action, codec.choices), []).append(name)
    stems = [stem for stem, *_ in groups]
    return {members[0] if stems.count(key[0]) > 1 else key[0]: members for key, members in groups.items()}


def horizon_of(env: Any) -> int | None:
    """Return the steps after which an environment ends an episode, where it says so: by its spec, or ``max_cycles``."""
    spec = getattr(getattr(env, "env", env), "spec", None)
    limits = [
        getattr(spec, "max_episode_steps", None),
        *(_attribute(env, name) for name in ("max_cycles", "max_steps")),
    ]
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def _attribute(env: Any, name: str) -> Any:
    """Return an attribute of an environment, or of one that it wraps."""
    for _ in range(20):
        if (value := getattr(env, name, None)) is not None:
            return value
        inner = next((getattr(env, each) for each in ("env", "aec_env", "par_env") if hasattr(env, each)), None)
        if inner is None:
            return None
        env = inner
    return None
