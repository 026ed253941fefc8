"""The on-policy collector: each batch consists of whole episodes of the policy in training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.collectors.world_source import NO_LOGS, host_or_kernel, world_bytes
from uavlab.core.protocols import Collector, Env, Policy, Snapshot, Trial, initial_memory, step_policy
from uavlab.core.registry import COLLECTORS, Resume, Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import Batch, Rollout, leaves, tree_map
from uavlab.envs.autoreset import judge, move, out_of_time, require_like
from uavlab.envs.staged import first_stage, start_noise
from uavlab.envs.tally import add_step, live_at_start, read_tally, start_tally
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime

TRIAL_WORLDS = 4  # most worlds of all runs of a trial


@dataclass(frozen=True)
class RolloutConfig:
    """Size of a batch.

    Attributes:
        worlds: Worlds per run (W), each stepped for one episode; ``auto`` for the knee of their throughput.
    """

    worlds: Annotated[int, Ge(1), Le(1_000_000), Resume.RESHAPED] = 16


class OnPolicyCollector(Collector):
    """Steps R x W new worlds for ``horizon`` steps per batch, also after their end, when agents are no longer live."""

    settings = RolloutConfig
    lacks: ClassVar[Mapping[str, str]] = {
        "replay": "this learner runs new episodes for each update and has no replay",
        "logs": NO_LOGS,
    }

    @classmethod
    def build(
        cls, config: Settings, env: Env, inputs: Any, policy: Policy, snapshot: Snapshot, rng: Streams, rt: Runtime
    ) -> "OnPolicyCollector":
        states = 2 * world_bytes(config.env) * config.source.worlds * config.run.runs  # those before and after a step
        require_memory(states, "worlds", "worlds or runs", rt.device)
        return cls(env, policy, config.source, rng, rt, config.run.log_episodes)

    @classmethod
    def steps_per_update(cls, config: Settings) -> int:
        return config.env.spec.horizon

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        worlds, updates = config.source.worlds, config.run.updates
        bytes_of_worlds = world_bytes(config.env) * worlds * config.run.runs
        missions = None if updates is None else updates * worlds
        return {"missions_per_run": missions, **super().plan(config), "world_bytes": bytes_of_worlds}

    @classmethod
    def trial(cls, config: Settings) -> Trial:
        """Return the run with few worlds; the time of an update grows with their number."""
        worlds = config.source.worlds
        few = min(worlds, max(1, TRIAL_WORLDS // config.run.runs))
        size = f"{few} of {worlds} worlds" if few < worlds else ""
        return Trial(replace(config, source=replace(config.source, worlds=few)), worlds / few, size)

    def __init__(
        self, env: Env, policy: Policy, config: RolloutConfig, rng: Streams, rt: Runtime, tally: bool = False
    ) -> None:
        """Wrap the functions of an episode by the runtime; with ``tally`` keep figures of the episodes."""
        self.env, self.policy, self.config, self.rng = env, policy, config, rng
        self.runs = len(rng.seeds)
        self.share = first_stage(env, self.runs, rng)
        self.steps = 0  # of every world
        self.form: tuple[Any, Any] | None = None  # types and shapes of the first states and observations
        blank = torch.zeros(self.runs * config.worlds, 1, dtype=rng.dtype, device=rng.device)
        self.tally = start_tally(env, blank) if tally else None
        self.host_work = getattr(env, "host_work", "")
        self._start = host_or_kernel(self.host_work, start_and_observe, rt)
        self._step = host_or_kernel(self.host_work, step_and_observe, rt)
        self._act, self._check = rt.time_stage(partial(step_policy, policy), "acting"), rt.check

    def start(self) -> tuple[Any, Any]:
        noise = start_noise(self.env, self.rng, "start", (self.config.worlds,), self.share).flatten(0, 1)
        state, obs = self._start(self.env, noise)
        if self.form is None:
            self.form = tree_map(lambda leaf: leaf.to("meta"), state), tree_map(lambda leaf: leaf.to("meta"), obs)
        for name, result, like in zip(("initial", "observe"), (state, obs), self.form, strict=True):
            require_like(self.env, name, result, like, len(noise))
        return state, obs

    def observations(self) -> Any:
        return tree_map(lambda leaf: leaf.unflatten(0, (self.runs, -1)), self.start()[1])

    @torch.no_grad()
    def world_step(self) -> Callable[[], Any]:
        """Return a function that computes one step of new worlds, without gradients; on the host, the next one."""
        spec, (state, obs) = self.env.spec, self.start()
        noise = self.rng.uniform("step", self.config.worlds, spec.step_noise).flatten(0, 1)
        still = torch.zeros(len(noise), spec.agents, spec.action, dtype=noise.dtype, device=noise.device)
        action = obs.legal.to(torch.uint8).argmax(-1) if spec.choices else still

        def call() -> Any:
            nonlocal state, obs
            result = self._step(self.env, state, action, noise, obs)
            state, obs = result[:2] if self.host_work else (state, obs)  # there a state is stepped once
            return result

        return torch.no_grad()(call)

    @torch.no_grad()
    def next(self) -> Batch:
        env, spec, lead = self.env, self.env.spec, (self.runs, self.config.worlds)
        state, obs = self.start()
        live = live_at_start(env, state, lead[0] * lead[1], self.rng.device).unflatten(0, lead)
        going = torch.ones(lead[0] * lead[1], dtype=torch.bool, device=self.rng.device)
        observations, actions, steps, memory = [], [], [], initial_memory(self.policy, *lead)
        for step in range(spec.horizon + 1):
            observations.append(tree_map(lambda leaf: leaf.unflatten(0, lead), obs))
            noise = acting_noise(self.rng, "act", self.config.worlds, spec)
            action, memory = self._act(observations[-1], noise, memory)
            actions.append(action)
            floats = ((name, leaf) for name, leaf in leaves(observations[-1]) if leaf.is_floating_point())
            self._check({f"obs.{name}": (leaf, "R W") for name, leaf in floats})
            if step == spec.horizon:
                break
            noise = self.rng.uniform("step", self.config.worlds, spec.step_noise).flatten(0, 1)
            before, action = state, actions[-1].flatten(0, 1)
            state, obs, *results = self._step(env, before, action, noise, obs)
            reward, terminated = (leaf.unflatten(0, lead) for leaf in results)
            self._check({"reward": (reward, "R W A")})
            steps.append((reward, live, terminated))
            live = live & ~terminated
            if hasattr(env, "truncated"):
                live = live & ~env.truncated(state).view(*lead, 1)
            going = self._count(step, going, (before, action, state), *results)
        rewards, lives, ends = (torch.stack(each, 1) for each in zip(*steps, strict=True))
        seen = tree_map(lambda *leaf: torch.stack(leaf, 1), *observations)
        data = Rollout(obs=seen, action=torch.stack(actions, 1), reward=rewards, live=lives, terminated=ends)
        index = torch.arange(spec.horizon * self.config.worlds, device=self.rng.device)
        return Batch(data, index.expand(self.runs, -1))

    def _count(
        self, number: int, going: Bool[Tensor, " B"], step: Any, reward: Tensor, terminated: Tensor
    ) -> Bool[Tensor, " B"]:
        """Add a step of worlds, of which some are ``going`` on, to the tally; return which go on after it."""
        late, left = out_of_time(self.env, step[2]), going & ~terminated.all(-1)
        if self.tally is not None:
            if number == 0:
                self.tally.running.zero_()  # worlds are stepped after their end
            ends = torch.stack((going & ~left, left & late))
            tally = add_step(self.env, self.tally, step, reward, ends)
            tree_map(Tensor.copy_, self.tally, tally)  # in place, as a CUDA graph needs it
        return left & ~late

    def figures(self) -> dict[str, Float[Tensor, " R"]]:
        return {} if self.tally is None else read_tally(self.env, self.tally, self.runs)

    def after_cycle(self) -> None:
        """Count the steps here, because the replays of a captured cycle run no Python code."""
        self.steps += self.env.spec.horizon

    def state_dict(self) -> dict[str, Tensor]:
        """Return the count of steps and the tally; all else depends on the random streams alone."""
        return {"steps": torch.tensor(self.steps), **dict(leaves(self.tally, "tally"))}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``; figures of episodes start anew where it is of another number of worlds."""
        self.steps = int(state["steps"])
        for name, leaf in leaves(self.tally, "tally"):
            if leaf.shape == state[name].shape:
                leaf.copy_(state[name])


def start_and_observe(env: Env, noise: Tensor) -> tuple[Any, Any]:
    state = env.initial(noise)
    return state, env.observe(state)


def step_and_observe(
    env: Env, state: Any, action: Tensor, noise: Tensor, obs: Any = None
) -> tuple[Any, Any, Tensor, Tensor]:
    after, next_obs = move(env, state, action, noise, obs)
    return after, next_obs, *judge(env, state, action, after, noise)


COLLECTORS.register("on_policy", OnPolicyCollector)
