"""Environments as strangers write them: their names, masks, bounds and results; each argument is one habit."""

import mmap
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from uavlab.workers.spaces import Rows, memory_bytes, rows_in
from uavlab.workers.team import Team

NAMES = {
    "tail": ("uav_0", "uav_1", "uav_2"),
    "numbers": (0, 1, 2),
    "digits": ("0", "1", "2"),
    "middle": ("uav1_blue", "uav2_blue", "uav3_blue"),
    "ordinals": ("1st_uav", "2nd_uav", "3rd_uav"),
    "letters": ("uav_a", "uav_b", "uav_c"),
    "words": ("first", "second", "third"),
    "roles": ("adversary_0", "agent_0", "agent_1"),
    "people": ("alice", "bob", "carol"),
}
CLOSED = np.array([1, 1, 0], np.int8)  # the last of three moves


class Fleet:
    """Three equal agents with three moves; the last one costs 10, the others earn 1, and five steps are an episode."""

    def __init__(self, names: str = "tail", mask: str = "", last: bool = True, wide: str = "") -> None:
        self.possible_agents, self.mask, self.last, self.wide = NAMES[names], mask, last, wide

    def observation_space(self, agent: Any) -> spaces.Space:
        own = spaces.Box(-1, 1, (3 if agent == self.wide else 2,))
        mask = spaces.MultiBinary(3)
        return {
            "beside": lambda: spaces.Dict({"observations": own, "action_mask": mask}),
            "third": lambda: spaces.Dict({"observation": own, "action_mask": mask, "battery": spaces.Box(0, 1)}),
            "nested": lambda: spaces.Dict({"state": spaces.Dict({"own": own, "action_mask": mask}), "wind": own}),
            "alone": lambda: spaces.Dict({"action_mask": mask}),
            "other": lambda: spaces.Dict({"observation": own, "Mask_of_moves": mask}),
            "avail": lambda: spaces.Dict({"observation": own, "avail_actions": mask}),
            "short": lambda: spaces.Dict({"observation": own, "action_mask": spaces.MultiBinary(2)}),
        }.get(self.mask, lambda: own)()

    def action_space(self, agent: Any) -> spaces.Space:
        return spaces.Discrete(3)

    def see(self, agents: Any) -> dict[Any, Any]:
        seen = {}
        for agent in agents:
            own = np.full(3 if agent == self.wide else 2, self.count / 10, np.float32)
            seen[agent] = {
                "beside": lambda own=own: {"observations": own, "action_mask": CLOSED},
                "third": lambda own=own: {"observation": own, "action_mask": CLOSED, "battery": np.ones(1)},
                "nested": lambda own=own: {"state": {"own": own, "action_mask": CLOSED}, "wind": own},
                "alone": lambda: {"action_mask": CLOSED},
                "other": lambda own=own: {"observation": own, "Mask_of_moves": CLOSED},
                "avail": lambda own=own: {"observation": own, "avail_actions": CLOSED},
                "short": lambda own=own: {"observation": own, "action_mask": CLOSED[:2]},
            }.get(self.mask, lambda own=own: own)()
        return seen

    def infos(self) -> dict[Any, Any]:
        own = {"infos": {"action_mask": CLOSED}, "infos_other": {"Legal_Mask": CLOSED}}.get(self.mask, {})
        return dict.fromkeys(self.agents, own)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self.count = [*self.possible_agents], 0
        return self.see(self.agents), self.infos()

    def step(self, actions: dict[Any, Any]) -> tuple[dict, ...]:
        self.count += 1
        over, agents = self.count >= 5, self.agents
        infos = self.infos()
        self.agents = [] if over else agents
        rewards = {agent: -10.0 if actions[agent] == 2 else 1.0 for agent in agents}
        cuts, ends = dict.fromkeys(agents, over), dict.fromkeys(agents, False)
        return self.see(agents if self.last else self.agents), rewards, ends, cuts, infos


class Spot(gymnasium.Env):
    """One agent with two moves and episodes of four steps; ``fault`` is what it returns against the contract."""

    observation_space: spaces.Space = spaces.Box(-1, 1, (2,))
    action_space: spaces.Space = spaces.Discrete(2)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, seen = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"alone": seen, "list": (seen, [])}.get(self.fault, (seen, {}))

    def step(self, action: Any) -> Any:
        self.count += 1
        seen, over = np.full(2, self.count / 10, np.float32), self.count >= 4
        rewards: dict[str, Any] = {"array": np.array([0.5]), "pair": [0.5, 0.5], "nothing": None, "word": "good"}
        reward = rewards.get(self.fault, 0.5)
        ends: dict[str, Any] = {"nan": float("nan"), "three": np.int64(3), "numpy": np.bool_(False), "zero": 0}
        end = ends.get(self.fault, False)
        if self.fault == "four":
            return seen, reward, over, {}
        if self.fault == "unseen":
            return None if over else seen, reward, end, over, {}
        return seen, reward, end, over, None if self.fault == "no infos" else {}


class NoSeed(Spot):
    """Its reset takes nothing."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Box:
    """A space of another package, with the attributes of Gymnasium's."""

    low, high, shape, dtype = np.full(2, -1.0), np.full(2, 1.0), (2,), np.dtype(np.float32)

    def __repr__(self) -> str:
        return "Box(-1.0, 1.0, (2,), float32)"


def legacy() -> gymnasium.Env:
    """Return an environment with a space of another package."""
    env = Spot()
    env.observation_space = Box()  # type: ignore[assignment]
    return env


class Tuples(gymnasium.Env):
    """Two agents in tuples, as warehouses and foragers have them; ``shared`` returns one reward and one end for all."""

    observation_space = spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,))))
    action_space = spaces.Tuple((spaces.Discrete(3, start=1), spaces.Discrete(3, start=1)))

    def __init__(self, shared: bool = False, parts: int = 2) -> None:
        self.shared, self.parts = shared, parts

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.see(), {"action_mask": [CLOSED, 1 - CLOSED], "other": 3}

    def step(self, action: tuple[int, ...]) -> Any:
        assert all(move in (1, 2, 3) for move in action)
        self.count += 1
        over = self.count >= 4
        rewards = float(sum(action)) if self.shared else [float(move) for move in action][: self.parts]
        ends = over if self.shared else [over, False]
        return self.see(), rewards, ends, over, {"action_mask": [CLOSED, 1 - CLOSED]}

    def see(self) -> Any:
        return tuple(np.full(2, (self.count + n) / 10, np.float32) for n in range(2))


def acting_in(space: spaces.Space) -> Spot:
    """Return an environment with an action space; its actions are checked."""

    class Acting(Spot):
        action_space = space

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), action
            return super().step(action)

    return Acting()


def step_once(env: Any, moves: Any = 0, steps: int = 1) -> Rows:
    """Start an environment as a worker does, step it, and return its rows."""
    team = Team(env)
    rows = rows_in(mmap.mmap(-1, memory_bytes(team.describe(), 1)), team.describe())
    team.reset(0, rows, 0)
    for _ in range(steps):
        rows.action[0, :, 0] = moves
        team.step(rows, 0)
    return rows
