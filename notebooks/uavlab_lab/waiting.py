"""An environment that waits, as a slow simulator does: ``uavlab_lab.waiting:Waiting,seconds=0.005``."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Waiting(gymnasium.Env):
    """A point in the plane that two forces push; its reward is minus the distance from the middle.

    While a step waits, the process computes nothing, so what overlap is worth does not depend on the processors.
    """

    def __init__(self, seconds: float = 0.005, length: int = 50) -> None:
        """Wait ``seconds`` in each step; an episode has ``length`` steps."""
        self.seconds, self.length = seconds, length
        self.observation_space, self.action_space = spaces.Box(-10.0, 10.0, (4,)), spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Put the point anywhere within 1 of the middle, at rest."""
        super().reset(seed=seed)
        self.state = np.concatenate((self.np_random.uniform(-1, 1, 2), np.zeros(2))).astype(np.float32)
        self.count = 0
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Wait, then move the point by its speed, and its speed by the forces."""
        time.sleep(self.seconds)
        self.count += 1
        place, speed = self.state[:2], self.state[2:]
        speed = 0.9 * speed + 0.1 * np.asarray(action, np.float32)
        self.state = np.concatenate((np.clip(place + speed, -10, 10), speed)).astype(np.float32)
        return self.state.copy(), -float(np.linalg.norm(self.state[:2])), False, self.count >= self.length, {}
