"""Where batches of learners come from that learn from what their own policy just did: whole episodes, flown anew."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from uavlab.collectors.base import CollectorBase
from uavlab.core.protocols import Env, Policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import Batch, Rollout, leaves, tree_map
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class RolloutConfig:
    """How much is flown for an update.

    Attributes:
        worlds: Worlds per run (W), each flown from its start to its end.
    """

    worlds: Annotated[int, Ge(1), Le(1_000_000)] = 16


class Rollouts(CollectorBase):
    """Flies R x W worlds from start to end with the learner's policy for each batch, and keeps nothing of them.

    Worlds that end early are flown on, and what they do then is marked as dead.
    """

    def __init__(self, env: Env, policy: Policy, config: RolloutConfig, rng: Streams, rt: Runtime) -> None:
        """Make ready to fly."""
        self.env, self.policy, self.config, self.rng = env, policy, config, rng
        self.runs = len(rng.seeds)
        self.steps = 0  # of every world
        self._start, self._move = rt.kernel(begun, "environment"), rt.kernel(moved, "environment")
        self._act, self._check = rt.time_stage(lambda obs, noise: policy(obs, noise), "acting"), rt.check

    def start(self) -> tuple[Any, Any]:
        """Draw fresh worlds, and look at them."""
        noise = self.rng.uniform("start", self.config.worlds, self.env.spec.initial_noise).flatten(0, 1)
        return self._start(self.env, noise)

    def observations(self) -> Any:
        """Return what the teams of fresh worlds observe (R W ...)."""
        return tree_map(lambda leaf: leaf.unflatten(0, (self.runs, -1)), self.start()[1])

    def world_step(self) -> Callable[[], Any]:
        """Return a call that moves fresh worlds by one step, always the same."""
        spec, (state, obs) = self.env.spec, self.start()
        noise = self.rng.uniform("step", self.config.worlds, spec.step_noise).flatten(0, 1)
        still = torch.zeros(len(noise), spec.agents, spec.action, dtype=noise.dtype, device=noise.device)
        action = obs.legal.to(torch.uint8).argmax(-1) if spec.choices else still
        return lambda: self._move(self.env, state, action, noise)

    @torch.no_grad()
    def next(self) -> Batch:
        """Fly one episode in every world."""
        env, spec, lead = self.env, self.env.spec, (self.runs, self.config.worlds)
        state, obs = self.start()
        live = torch.ones(*lead, spec.agents, dtype=torch.bool, device=self.rng.device)
        seen, actions, steps = [], [], []
        for step in range(spec.horizon + 1):
            seen.append(tree_map(lambda leaf: leaf.unflatten(0, lead), obs))
            actions.append(self._act(seen[-1], acting_noise(self.rng, "act", self.config.worlds, spec)))
            self._check({f"obs.{name}": (leaf, "R W") for name, leaf in leaves(seen[-1]) if leaf.is_floating_point()})
            if step == spec.horizon:
                break
            noise = self.rng.uniform("step", self.config.worlds, spec.step_noise).flatten(0, 1)
            state, obs, *told = self._move(env, state, actions[-1].flatten(0, 1), noise)
            reward, terminated = (leaf.unflatten(0, lead) for leaf in told)
            self._check({"reward": (reward, "R W A")})
            steps.append((reward, live, terminated))
            live = live & ~terminated
        self.steps += spec.horizon
        rewards, lives, ends = (torch.stack(each, 1) for each in zip(*steps, strict=True))
        data = Rollout(
            obs=tree_map(lambda *leaf: torch.stack(leaf, 1), *seen),
            action=torch.stack(actions, 1),
            reward=rewards,
            live=lives,
            terminated=ends,
        )
        return Batch(
            data, torch.arange(spec.horizon * self.config.worlds, device=self.rng.device).expand(self.runs, -1)
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return how many steps were made; all else is in the streams."""
        return {"steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.steps = int(state["steps"])


def begun(env: Env, noise: Tensor) -> tuple[Any, Any]:
    """Start worlds and look at them."""
    state = env.initial(noise)
    return state, env.observe(state)


def moved(env: Env, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Any, Tensor, Tensor]:
    """Move worlds by one step: what they are then, look like, have earned, and whether they ended."""
    after = env.transition(state, action, noise)
    return after, env.observe(after), env.reward(state, action, after), env.terminated(after)
