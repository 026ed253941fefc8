"""One copy of an environment as a team, in the process of a worker; those of Gymnasium are teams of one agent.

What breaks the contract of Gymnasium or PettingZoo is refused by name.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from uavlab.core.text import quote, suggest
from uavlab.workers.spaces import (
    GOES_ON,
    MASK,
    TERMINATED,
    TRUNCATED,
    UNSEEN,
    Agent,
    Codec,
    Description,
    Refusal,
    Rows,
    array_of,
)

RESULTS = ("observation", "reward", "terminated", "truncated", "info")
Infos = Mapping[Any, Any]


def require_seed(env: Any) -> None:
    """Raise a ``Refusal`` if the reset of an environment, or of the one that it wraps, takes no seed."""
    for reset in (env.reset, getattr(env, "unwrapped", env).reset):
        names = inspect.signature(reset).parameters.values()
        if not any(name.name == "seed" or name.kind is name.VAR_KEYWORD for name in names):
            raise Refusal("reset takes no seed; expected reset(self, seed=None, options=None): draw all chance from it")


def reset_pair(result: Any) -> tuple[Any, Infos]:
    """Return observation and infos that a reset returned; raise a ``Refusal`` if it returned no pair of them."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise Refusal(
            f"reset returned {_kind(result)}; expected a pair, an observation and a dict of infos: return both, as "
            "gym did not before 0.26"
        )
    return result


def step_results(result: Any) -> tuple[Any, ...]:
    """Return the five results of a step; raise a ``Refusal`` if there are others, or the infos are no dict."""
    if not isinstance(result, tuple) or len(result) != len(RESULTS):
        old = ", as gym did before 0.26" if isinstance(result, tuple) and len(result) == 4 else ""
        raise Refusal(
            f"step returned {_kind(result)}{old}; expected a tuple of five: {', '.join(RESULTS)}: return what ended "
            "the task as terminated, and a limit of time as truncated"
        )
    return *result[:4], _dict(result[4], "info of step")


def by_agent(results: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
    """Return results of a parallel environment; raise a ``Refusal`` if one is no dict by agent."""
    return tuple(_dict(result, f"result {number} of {doing}") for number, result in enumerate(results, 1))


def info_of(infos: Infos, agent: Any) -> Infos:
    """Return the infos of an agent, empty without any; raise a ``Refusal`` if they are no dict."""
    return _dict(infos.get(agent, {}), f"info of {agent}")


def _dict(value: Any, what: str) -> Any:
    if not isinstance(value, Mapping):
        raise Refusal(f"the {what} is {_kind(value)}; expected a dict: return an empty one for nothing")
    return value


def reward_of(value: Any, agent: Any) -> float:
    """Return the reward of an agent, also of an array of one; raise a ``Refusal`` if it is not one number."""
    if type(value) is float:
        return value
    array = array_of(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise Refusal(
            f"step returned the reward {quote(value)} of {agent}; expected one number: return a float, such as the sum "
            "of its parts"
        )
    return float(array.item())


def end_of(terminated: Any, truncated: Any, agent: Any) -> int:
    """Return whether an agent goes on, or how it ended; raise a ``Refusal`` if one of both is not true or false."""
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        array = array_of(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            raise Refusal(f"step returned {name}={quote(value)} of {agent}; expected true or false: return a bool")
    return TERMINATED if terminated else TRUNCATED if truncated else GOES_ON


def _kind(value: Any) -> str:
    return f"{len(value)} results" if isinstance(value, tuple) else f"a {type(value).__name__}"


class Adapter:
    """A Gymnasium environment: of one agent, or of several, whose observations and actions are tuples of one length."""

    def __init__(self, env: Any) -> None:
        from gymnasium.spaces import Tuple

        self.env, self.unwrapped = env, getattr(env, "unwrapped", env)
        seen, action = env.observation_space, env.action_space
        self.single = not (isinstance(seen, Tuple) and isinstance(action, Tuple) and len(seen) == len(action) > 0)
        pairs = [(seen, action)] if self.single else [*zip(seen, action, strict=True)]
        self.spaces = {ALONE if self.single else f"{ALONE}_{number}": pair for number, pair in enumerate(pairs)}
        self.possible_agents = tuple(self.spaces)

    def observation_space(self, agent: str) -> Any:
        return self.spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        return self.spaces[agent][1]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def reset(self, seed: int) -> tuple[dict[str, Any], ...]:
        """Start an episode."""
        obs, info = reset_pair(self.env.reset(seed=seed))
        return self._split(obs, "observation"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the environment; an agent that has ended does its first move, or what is nearest to no action."""
        joint = tuple(actions[name] if name in actions else _rest(self.action_space(name)) for name in self.spaces)
        *results, info = step_results(self.env.step(joint[0] if self.single else joint))
        parts = [self._split(result, what) for result, what in zip(results, RESULTS, strict=False)]
        return (*parts, self._infos(info))

    def _split(self, values: Any, what: str) -> dict[str, Any]:
        """Return a result of each agent; a number is that of all."""
        if self.single or (what != "observation" and not isinstance(values, (list, tuple)) and np.ndim(values) == 0):
            return dict.fromkeys(self.spaces, values)
        if values is None or len(values) != len(self.spaces):
            got = "None" if values is None else len(values)
            raise Refusal(f"{what} has {got} parts; expected {len(self.spaces)}: return one for each agent")
        return dict(zip(self.spaces, values, strict=True))

    def _infos(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the infos of each agent: those of all, with the agent's own mask."""
        masks = self._split(info[MASK], MASK) if MASK in info else {}
        return {name: {**info, **({MASK: masks[name]} if masks else {})} for name in self.spaces}


def _rest(space: Any) -> Any:
    return space.start if hasattr(space, "start") else np.clip(np.zeros_like(space.low), space.low, space.high)


Grouping = Literal["names", "all", "each"]
NUMBER = re.compile(r"[\W_]*\d+(?:(?:st|nd|rd|th)(?![a-z]))?", re.I)
PARTS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")
ALONE = "agent"  # name of the agent of a Gymnasium environment, and of agents whose names tell them apart alone


def stem_of(name: str) -> str:
    """Return a name without what counts: its numbers, or where it has none, single letters; empty if nothing is left.

    A name that does not count, such as ``alice``, only tells an agent from others: nothing is left of it either.

    >>> [stem_of(name) for name in ("uav_3", "uav1_blue", "1st_uav", "uav_b", "uavB", "7", "alice", "red_a_1")]
    ['uav', 'uav_blue', 'uav', 'uav', 'uav', '', '', 'red_a']
    """
    if (stem := NUMBER.sub("", name)) == name:
        parts = PARTS.split(name)
        rest = [part for part in parts if len(part) > 1]
        stem = "_".join(rest) if len(rest) < len(parts) else ""
    return re.sub(r"^[\W_]+|[\W_]+$", "", stem)


def groups_by_name(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Return agents by group: those whose names have one stem, and whose spaces have equal sizes."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, size in sizes.items():
        groups.setdefault((stem_of(name), size), []).append(name)
    labels = {members[0]: stem or (members[0] if len(members) == 1 else ALONE) for (stem, _), members in groups.items()}
    unique = len({*labels.values()}) == len(labels)  # or else the first agent of each group names it
    return {labels[members[0]] if unique else members[0]: members for members in groups.values()}


TURNS = (
    "its agents act in turns; expected a parallel environment: name a function of yours that returns "
    "pettingzoo.utils.turn_based_aec_to_parallel(env), or aec_to_parallel(env) where all act before the next step"
)


def make(kind: str, target: str, factory: str, arguments: Mapping[str, Any]) -> Any:
    """Return a new environment with the functions of a parallel environment."""
    if kind == "gymnasium":
        import gymnasium

        env = gymnasium.make(target, disable_env_checker=True, **arguments)
    else:
        env = _call(_factory(target, factory), f"{target}:{factory}", arguments)
    if hasattr(env, "agent_iter"):
        raise Refusal(TURNS)
    if hasattr(env, "possible_agents") and hasattr(env, "reset"):
        require_seed(env)
        return env
    if not (hasattr(env, "observation_space") and hasattr(env, "step") and hasattr(env, "reset")):
        raise Refusal(
            f"made a {type(env).__name__}; expected an environment of Gymnasium, or a parallel one of PettingZoo: name "
            "a function or class that makes one"
        )
    require_seed(env)
    return Adapter(env)


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
            near = _siblings(error.name or "")
            raise Refusal(f"no module named {error.name!r}{near}; install its package, or correct the name") from error
    thing: Any = module
    for part in factory.split("."):
        if not hasattr(thing, part) and part == "parallel_env" and hasattr(thing, "env"):
            raise Refusal(TURNS)
        if not hasattr(thing, part):
            raise Refusal(f"{target} has no {factory}; name a function that makes an environment")
        thing = getattr(thing, part)
    return thing


def _siblings(name: str) -> str:
    """Return which other versions of a module its package has, or a module of a similar name; empty without any."""
    package, _, last = name.rpartition(".")
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package) if package else None
        modules = [module.name for module in pkgutil.iter_modules(spec.submodule_search_locations if spec else ())]
        stem = re.sub(r"_v\d+$", "_v", last)
        if versions := [
            module for module in modules if last != stem and re.fullmatch(rf"{re.escape(stem)}\d+", module)
        ]:
            return f" (its versions here: {', '.join(versions)})"
        return suggest(last, modules)
    return ""


def _call(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Any:
    """Return what a factory makes; unknown arguments are refused with the known ones."""
    try:
        known = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        known = ()  # type: ignore[assignment]
    names = [
        argument.name for argument in known if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    ]
    free = not known or any(argument.kind is argument.VAR_KEYWORD for argument in known)
    if not free and (unknown := sorted(arguments.keys() - set(names))):
        raise Refusal(f"{name} takes no {unknown[0]!r}; its arguments: {', '.join(names) or 'none'}")
    return factory(**arguments)


class Team:
    """A copy of an environment, whose results go to a row of shared memory; agents of a group follow each other."""

    def __init__(self, env: Any) -> None:
        self.env = env
        names = {str(agent): agent for agent in env.possible_agents}  # agents may be numbers
        if not names:
            raise Refusal("it has no agents; expected possible_agents with at least one: list all of them")
        codecs = {
            name: Codec(name, env.observation_space(agent), env.action_space(agent)) for name, agent in names.items()
        }
        if len({codec.choices > 0 for codec in codecs.values()}) > 1:
            moving = next(name for name, codec in codecs.items() if codec.choices)
            raise Refusal(
                f"{moving} chooses moves and others act continuously; expected one kind for all: let action_space be a "
                "Box for each, and read a move from the sign of a number"
            )
        groups = groups_by_name({name: (codec.obs, codec.action, codec.choices) for name, codec in codecs.items()})
        self.codecs = [codecs[name] for members in groups.values() for name in members]
        self.names = [names[codec.agent] for codec in self.codecs]
        self.groups = [group for group, members in groups.items() for _ in members]
        self.live: list[int] = []

    def describe(self) -> Description:
        """Return what the other process needs to know; what a first reset shows of masks is part of it."""
        infos: Infos
        try:
            _, infos = self._start(0)
        except Refusal:
            raise
        except Exception:
            infos = {}  # the reset of a world raises it again, and says where
        seen = [info_of(infos, name) for name in self.names]
        agents = tuple(
            Agent(codec.agent, group, codec.obs, codec.action, codec.choices, codec.bounds, codec.reads_mask(info))
            for codec, group, info in zip(self.codecs, self.groups, seen, strict=True)
        )
        notes = {note: None for codec, info in zip(self.codecs, seen, strict=True) for note in codec.notes(info)}
        if callable(getattr(getattr(self.env, "unwrapped", self.env), "action_masks", None)):
            notes[f"its action_masks() is not used: return the mask as {MASK} in infos, of reset and step"] = None
        horizon, limit = horizon_of(self.env)
        single = isinstance(self.env, Adapter) and self.env.single
        return Description(agents, horizon, single, limit, tuple(notes))

    def _start(self, seed: int) -> tuple[Infos, Infos]:
        """Reset the environment."""
        obs, infos = by_agent(reset_pair(self.env.reset(seed=seed)), "reset")
        missing = [str(name) for name in self.names if obs.get(name) is None]
        if missing:
            raise Refusal(
                f"reset returned no observation of {missing[0]}; expected one of each of possible_agents: start all of "
                "them in every episode"
            )
        return obs, infos

    def reset(self, seed: int, rows: Rows, row: int) -> None:
        """Start an episode."""
        obs, infos = self._start(seed)
        self.live = [*range(len(self.names))]
        rows.reward[row] = rows.end[row] = rows.obs[row] = rows.legal[row] = 0
        self._observe(self.live, self.live, obs, infos, rows, row)

    def step(self, rows: Rows, row: int) -> None:
        """Step the environment by the actions in the row."""
        actions = {self.names[n]: self.codecs[n].act(rows.action[row, n]) for n in self.live}
        obs, rewards, terminations, truncations, infos = by_agent(step_results(self.env.step(actions)), "step")
        rows.reward[row] = rows.end[row] = 0
        for number in {*range(len(self.names))} - {*self.live}:
            rows.obs[row, number] = 0
            rows.legal[row, number] = False
            rows.legal[row, number, :1] = True
        going, seen = [], []
        for number in self.live:
            name = self.names[number]
            if any(name not in result for result in (rewards, terminations, truncations)):
                raise Refusal(
                    f"step returned no reward or end of {name}, which had not ended; expected those of every agent "
                    "that goes on: keep the agent, and set terminated when it leaves"
                )
            rows.reward[row, number] = reward_of(rewards[name], name)
            end = end_of(terminations[name], truncations[name], name)
            if obs.get(name) is not None:
                seen.append(number)
            elif end == GOES_ON:
                raise Refusal(
                    f"step returned no observation of {name}, which goes on; expected one of every agent that goes "
                    "on: keep the agent, and set terminated when it leaves"
                )
            rows.end[row, number] = UNSEEN if end == TRUNCATED and number not in seen else end
            going += [number] if end == GOES_ON else []
        self._observe(seen, going, obs, infos, rows, row)
        if new := [name for name in obs if name not in self.names]:
            raise Refusal(
                f"step returned the new agent {new[0]}; expected those of possible_agents alone: list it there, and "
                "start it in reset"
            )
        self.live = going

    def _observe(self, seen: list[int], going: list[int], obs: Infos, infos: Infos, rows: Rows, row: int) -> None:
        """Write what agents observe; an agent without an open move, while another one has some, waits."""
        closed = []
        for number in seen:
            codec, name = self.codecs[number], self.names[number]
            numbers, mask = codec.observe(obs[name], info_of(infos, name))
            rows.obs[row, number, : codec.obs] = numbers
            if codec.choices:
                rows.legal[row, number, : codec.choices] = True if mask is None else mask
            if mask is not None and not mask.any():
                closed.append(number)
                rows.legal[row, number, 0] = True
        if going and {*going} <= {*closed}:
            raise Refusal(
                f"{MASK} of {self.codecs[going[0]].agent} is all 0, and nobody has a move; expected an agent that has "
                "one: leave a move open in every state"
            )


def horizon_of(env: Any) -> tuple[int | None, str]:
    """Return the steps after which an environment ends an episode, where it says so, and what says so."""
    spec = getattr(getattr(env, "env", env), "spec", None)
    limits = {
        "its spec": getattr(spec, "max_episode_steps", None),
        **{name: _attribute(env, name) for name in ("max_cycles", "max_steps")},
    }
    return next(((limit, name) for name, limit in limits.items() if isinstance(limit, int) and limit > 0), (None, ""))


def _attribute(env: Any, name: str) -> Any:
    """Return an attribute of an environment, or of one that it wraps."""
    for _ in range(20):
        if (value := getattr(env, name, None)) is not None:
            return value
        inner = next((getattr(env, key) for key in ("env", "aec_env", "par_env") if hasattr(env, key)), None)
        if inner is None:
            return None
        env = inner
    return None
