"""Environments as others write them: parallel ones by PettingZoo's convention, and single ones of Gymnasium.

Their faults are arguments: what goes wrong, and at which step of an episode.
"""

import ctypes
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Meadow:
    """Two grazers and a wolf on a line; a grazer that the wolf meets ends, and the others go on.

    Grazers observe 3 numbers, the wolf 4. With ``moves`` they choose (grazers among 3 moves, of which the last is
    closed in the upper half; the wolf among 2), otherwise they act continuously (1 and 2 dimensions).
    """

    possible_agents = ("grazer_0", "wolf_0", "grazer_1")

    def __init__(self, moves: bool = True, length: int = 12, fault: str = "", at: int = 3, cut: int = 0) -> None:
        self.moves, self.max_cycles, self.fault, self.at, self.cut = moves, length, fault, at, cut
        self.agents: list[str] = []
        self.chance = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        own = spaces.Box(-10, 10, (4 if agent == "wolf_0" else 3,))
        masked = self.moves and agent != "wolf_0"
        return spaces.Dict({"observation": own, "action_mask": spaces.MultiBinary(3)}) if masked else own

    def action_space(self, agent: str) -> spaces.Space:
        if self.moves:
            return spaces.Discrete(2 if agent == "wolf_0" else 3)
        return spaces.Box(np.array([-1, 0][: 1 + (agent == "wolf_0")], np.float32), 3.0)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.chance = np.random.default_rng(None if self.fault == "chance" else seed)
        self.agents = [*self.possible_agents]
        self.place = dict(zip(self.agents, self.chance.uniform(-2, 2, 3), strict=True))
        self.count = 0
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents)
        self.count += 1
        if self.count == self.at:
            self.misbehave()
        for agent, action in actions.items():
            own = float(action) - 1 if self.moves else float(np.asarray(action).sum()) / 4
            self.place[agent] = float(np.clip(self.place[agent] + 0.3 * own + 0.1 * self.chance.normal(), -3, 3))
        near = {agent: abs(self.place[agent] - self.place["wolf_0"]) for agent in self.agents}
        ends = {agent: agent != "wolf_0" and near[agent] < 0.3 for agent in self.agents}
        alone = sum(ends.values()) == len(self.agents) - 1
        ends |= {"wolf_0": alone} if "wolf_0" in ends else {}
        late = self.count >= (self.cut or self.max_cycles)
        rewards = {agent: near[agent] if agent != "wolf_0" else -min(near.values()) for agent in self.agents}
        if self.fault == "nan" and self.count == self.at:
            rewards["wolf_0"] = float("nan")
        obs, cuts = self.observations(), dict.fromkeys(self.agents, late)
        self.agents = [agent for agent in self.agents if not (ends[agent] or late)]
        return obs, rewards, ends, cuts, {agent: {} for agent in ends}

    def misbehave(self) -> None:
        if self.fault == "raise":
            raise ValueError("the meadow is closed")
        if self.fault == "shout":
            print("before\x1b[2J", "\u202e", flush=True)
            raise ValueError("closed\x1b]0;owned\x07")
        if self.fault == "crash":
            ctypes.string_at(0)
        if self.fault == "hang":
            time.sleep(600)
        if self.fault == "die":
            os._exit(3)
        if self.fault == "fewer":
            self.agents.remove("wolf_0")
        if self.fault == "other":
            self.agents.append("dog_0")
            self.place["dog_0"] = 0.0

    def observations(self) -> dict[str, Any]:
        seen = {}
        for agent in self.agents:
            own = self.place[agent]
            others = [self.place[other] - own for other in self.possible_agents if other != agent]
            numbers = np.array([own, *others, self.count][: 4 if agent == "wolf_0" else 3], np.float32)
            if self.fault == "shape" and self.count == self.at:
                numbers = numbers[1:]
            mask = np.array([1, 1, own < 0], np.int8)
            seen[agent] = {"observation": numbers, "action_mask": mask} if self.moves and agent != "wolf_0" else numbers
        return seen


class Hill(gymnasium.Env):
    """A ball that a force moves on a slope; the episode is truncated at ``length``, and ends beyond 2."""

    observation_space = spaces.Dict({"place": spaces.Box(-4, 4, (1,)), "third": spaces.Discrete(3)})

    def __init__(
        self, length: int = 10, low: float = -1.0, high: float = 1.0, moves: int = 0, wait: float = 0.0
    ) -> None:
        self.length, self.wait = length, wait
        self.action_space = spaces.Discrete(moves, start=-1) if moves else spaces.Box(low, high, (2,))
        self.infos = {"action_mask": np.array([1, 0, 1])} if moves else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place, self.count = self.np_random.uniform(-1, 1), 0
        return self.seen(), {**self.infos}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        time.sleep(self.wait)
        self.count += 1
        self.place += float(np.sum(action)) * 0.2 + 0.05 * self.np_random.normal()
        end = abs(self.place) > 2
        return self.seen(), -abs(self.place), end, self.count >= self.length, {**self.infos}

    def seen(self) -> dict[str, Any]:
        return {"place": np.array([np.clip(self.place, -4, 4)], np.float32), "third": self.count % 3}


class Turns(gymnasium.Env):
    """A game of five steps that raises at every move but the one that is open."""

    observation_space = spaces.Dict({"observation": spaces.Box(-1, 1, (1,)), "action_mask": spaces.MultiBinary(3)})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.count, self.open = 0, int(self.np_random.integers(3))
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if action != self.open:
            raise RuntimeError(f"move {action} is illegal")
        self.count, self.open = self.count + 1, (self.open + 1) % 3
        return self.seen(), 1.0, False, self.count >= 5, {}

    def seen(self) -> dict[str, Any]:
        return {"observation": np.zeros(1, np.float32), "action_mask": np.arange(3) == self.open}


def many_moves() -> gymnasium.Env:
    """Return an environment whose actions are several switches, which nobody serves."""
    env = Hill()
    env.action_space = spaces.MultiBinary(3)
    return env


def unbounded() -> gymnasium.Env:
    """Return an environment whose actions have no bounds."""
    return Hill(high=np.inf)


def huge() -> gymnasium.Env:
    """Return an environment that observes large images."""
    env = Hill()
    env.observation_space = spaces.Box(0, 255, (200, 200, 3), np.uint8)
    return env


def nothing() -> int:
    """Return no environment."""
    return 3


class Pair:
    """Two agents of which the first is truncated after two steps, and the other after four."""

    possible_agents = ("first_0", "first_1")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (1,))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents, self.count = [*self.possible_agents], 0
        return {agent: np.ones(1) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self.count += 1
        cuts = {agent: self.count >= (2 if agent == "first_0" else 4) for agent in self.agents}
        results = [dict.fromkeys(self.agents, value) for value in (np.ones(1), 1.0, False)]
        self.agents = [agent for agent in self.agents if not cuts[agent]]
        return *results, cuts, {}


def lone_leaver() -> Pair:
    """Return an environment that truncates one agent before the other."""
    return Pair()


def leave() -> None:
    """End the process."""
    os._exit(5)


class Simulator(Hill):
    """An environment whose copies start a process each, and write into a file when they are closed."""

    def __init__(self, log: str, closing: str = "") -> None:
        super().__init__()
        self.log, self.closing = Path(log), closing
        self.child = subprocess.Popen(["sleep", "1000"])
        self.write(f"started {self.child.pid}")

    def write(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{line}\n")

    def close(self) -> None:
        self.write(f"closed {self.child.pid}")
        if self.closing == "raise":
            raise ValueError("the simulator is gone")
        if self.closing == "hang":
            time.sleep(1000)
        if self.closing != "forget":
            self.child.kill()
            self.child.wait()


class Chance(Hill):
    """An environment whose chance does not follow the seed: always, on used copies, in other copies, or in steps."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.used, self.number = kind, False, np.random.default_rng().uniform()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=None if self.kind == "always" or (self.kind == "used" and self.used) else seed)
        self.place += self.number * (self.kind == "copies")
        self.used = True
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        _, *others = super().step(action)
        self.place += 0.01 * np.random.default_rng().uniform() * (self.kind == "steps")
        return self.seen(), *others
