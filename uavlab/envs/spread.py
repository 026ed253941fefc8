"""Cooperative spread: every landmark needs a UAV near it, and no landmark belongs to a UAV.

The area is a square; the unit of length is half its side, and its centre is the origin.

Source:
    Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments", the task "cooperative
    navigation"; sizes, motion, prices and walls are our own.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.core.types import EnvSpec, Metric, tensors
from uavlab.ops.geometry import constant, distance


@tensors
class State:
    """State of a batch of worlds; there are as many landmarks as UAVs."""

    pos: Float[Tensor, "B A 2"]  # units
    vel: Float[Tensor, "B A 2"]  # units/s
    landmark: Float[Tensor, "B A 2"]  # units
    step: Int[Tensor, " B"]  # number of steps


@dataclass(frozen=True)
class Spread:
    """The spread task: UAVs agree without words on who flies to which landmark.

    UAVs start at rest and, like landmarks, anywhere in the square. A UAV speeds up by (``max_speed`` x action -
    velocity) / ``lag``, and stops at walls.

    | observation | of a UAV                                                                 | unit    |
    | ----------- | ------------------------------------------------------------------------ | ------- |
    | 0, 1        | its velocity                                                             | units/s |
    | 2, 3        | its x, y                                                                 | units   |
    | 4, 5, ...   | x, y from it to each landmark                                            | units   |
    | ...         | x, y from it to each other UAV: the one with the next number is first    | units   |

    | action      | of a UAV                                                                 | unit    |
    | ----------- | ------------------------------------------------------------------------ | ------- |
    | 0, 1        | velocity in x and y that it approaches: -1 and 1 stand for ``max_speed`` | units/s |

    | reward of the state after a step                        | every UAV                               |
    | ------------------------------------------------------- | --------------------------------------- |
    | share of landmarks that are covered                     | ``cover_reward`` x the share            |
    | mean distance of landmarks to the UAV nearest to each   | -``distance_cost`` x the mean, per unit |
    | another UAV within ``collision_radius``                 | -``collision_cost``, only if it is near |

    End: none but the horizon.

    Attributes:
        uavs: UAVs per world (A), and landmarks.
        dt: Duration of one step (s).
        horizon: Steps after which an episode is truncated.
        max_speed: Highest speed along each axis (units/s).
        lag: Time in which a UAV makes up 63 % of a difference in velocity (s).
        cover_radius: Distance to the nearest UAV below which a landmark is covered (units).
        collision_radius: Distance below which two UAVs collide (units).
        cover_reward: Per step, times the share of landmarks that are covered.
        distance_cost: Per step and unit of the mean distance from a landmark to its nearest UAV.
        collision_cost: Per step for a UAV that collides with any other.
    """

    uavs: Annotated[int, Ge(1), Le(64)] = 3
    dt: Annotated[float, Gt(0), Le(1)] = 0.2
    horizon: Annotated[int, Ge(1), Le(100_000)] = 25
    max_speed: Annotated[float, Ge(0.01), Le(100)] = 1.0
    lag: Annotated[float, Ge(0.01), Le(100)] = 0.4
    cover_radius: Annotated[float, Gt(0), Le(3)] = 0.1
    collision_radius: Annotated[float, Gt(0), Le(3)] = 0.1
    cover_reward: Annotated[float, Ge(0), Le(1e6)] = 1.0
    distance_cost: Annotated[float, Ge(0), Le(1e6)] = 1.0
    collision_cost: Annotated[float, Ge(0), Le(1e6)] = 1.0

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("covered", "last", bounds=(0.0, 1.0)),
        Metric("collisions", "sum", better="low", bounds=(0.0, math.inf)),
    )
    labels: ClassVar[dict[str, str]] = {
        "uavs": "UAVs",
        "covered": "covered landmarks",
        "dt": "time step (s)",
        "max_speed": "highest speed (units/s)",
        "lag": "lag of velocity (s)",
        "cover_radius": "covering radius (units)",
        "collision_radius": "collision radius (units)",
    }
    score: ClassVar[dict[str, float]] = {"covered": 1.0, "collisions": -0.01}

    @cached_property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            agents=self.uavs,
            obs=4 * self.uavs + 2,
            action=2,
            horizon=self.horizon,
            dt=self.dt,
            initial_noise=4 * self.uavs,
            step_noise=0,
            groups=(0,) * self.uavs,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw new worlds; ``noise`` holds ``spec.initial_noise`` uniform numbers per world."""
        pos, landmark = (2 * noise - 1).view(-1, 2, self.uavs, 2).unbind(1)
        step = torch.zeros_like(noise[:, 0], dtype=torch.int64)
        return State(pos=pos, vel=torch.zeros_like(pos), landmark=landmark, step=step)

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Move the UAVs by one step, exactly for an action that stays; actions beyond [-1, 1] are clamped."""
        aim = self.max_speed * action.clamp(-1, 1)
        lead = state.vel - aim  # fades away as exp(-t / lag)
        fade = -math.expm1(-self.dt / self.lag)
        free = state.pos + self.dt * aim + (self.lag * fade) * lead
        pos = free.clamp(-1, 1)
        vel = torch.where(pos == free, state.vel - fade * lead, 0.0)
        return State(pos=pos, vel=vel, landmark=state.landmark, step=state.step + 1)

    def observe(self, state: State) -> Float[Tensor, "B A O"]:
        here = state.pos[:, :, None]
        landmarks = (state.landmark[:, None] - here).flatten(2)
        others = (self._others(state) - here).flatten(2)
        return torch.cat((state.vel, state.pos, landmarks, others), -1)

    def reward(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> Float[Tensor, "B A"]:
        dtype = after.pos.dtype
        team = self.cover_reward * self.covered(after).to(dtype).mean(1)
        team = team - self.distance_cost * self.gap(after).amin(1).mean(1)
        return team[:, None] - self.collision_cost * self.collides(after).any(-1).to(dtype)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        return torch.zeros_like(state.pos[..., 0], dtype=torch.bool)

    def measure(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of covered landmarks, and the number of pairs of UAVs that collide."""
        dtype = after.pos.dtype
        return {
            "covered": self.covered(after).to(dtype).mean(1),
            "collisions": self.collides(after).to(dtype).sum((1, 2)) / 2,
        }

    def gap(self, state: State) -> Float[Tensor, "B A A"]:
        """Return the distance from each UAV to each landmark (units)."""
        return distance(state.pos[:, :, None], state.landmark[:, None])

    def covered(self, state: State) -> Bool[Tensor, "B A"]:
        """Return which landmarks have a UAV near them."""
        return (self.gap(state) < self.cover_radius).any(1)

    def collides(self, state: State) -> Bool[Tensor, "B A A-1"]:
        """Return for each UAV with which others it collides, in the order of observations."""
        return distance(self._others(state), state.pos[:, :, None]) < self.collision_radius

    def _others(self, state: State) -> Float[Tensor, "B A A-1 2"]:
        return state.pos[:, _next_numbers(self.uavs, state.pos.device)]


@lru_cache
def _next_numbers(uavs: int, device: torch.device) -> Int[Tensor, "A A-1"]:
    """Return the numbers that follow each UAV's, in turn, so that no number is special in observations."""
    turn = torch.arange(uavs, device=device)
    return (turn[:, None] + turn[1:]) % uavs


MOST = 4  # UAVs whose assignments are all compared, 24 of them
RESPONSE = 0.2  # s: time constant of the approach; at least two steps, because actions are held for one


def assignment(env: Spread, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly every UAV to a landmark of its own, without regard to collisions.

    Up to 4 UAVs take the assignment of the shortest paths in sum, in which no two paths cross; larger teams take the
    shortest path first.
    """
    gap = env.gap(state)
    number = shortest(gap) if env.uavs <= MOST else nearest_first(gap)
    target = state.landmark.gather(1, number[..., None].expand(-1, -1, 2))
    return steer(env, target - state.pos, state.vel)


def shortest(gap: Float[Tensor, "B A A"]) -> Int[Tensor, "B A"]:
    """Return the landmark of each UAV in the assignment with the smallest sum of distances."""
    uavs = gap.shape[1]
    choices = constant(tuple(permutations(range(uavs))), gap.device, torch.int64)
    length = gap[:, torch.arange(uavs, device=gap.device), choices].sum(-1)
    return choices[length.argmin(1)]


def nearest_first(gap: Float[Tensor, "B A A"]) -> Int[Tensor, "B A"]:
    """Return the landmark of each UAV if the nearest pair is assigned first, then the nearest pair of the others."""
    uavs = gap.shape[1]
    each = torch.arange(uavs, device=gap.device)
    number = torch.zeros_like(gap[:, 0], dtype=torch.int64)
    for _ in range(uavs):
        best = gap.flatten(1).argmin(1, keepdim=True)
        uav, landmark = each == best // uavs, each == best % uavs
        number = torch.where(uav, best % uavs, number)
        gap = gap.masked_fill(uav[:, :, None] | landmark[:, None], torch.inf)
    return number


def steer(env: Spread, offset: Float[Tensor, "B A 2"], vel: Float[Tensor, "B A 2"]) -> Float[Tensor, "B A 2"]:
    """Return actions that close an offset without overshoot: PD control, with the drag of the motion made up for."""
    response = max(RESPONSE, 2 * env.dt)
    acceleration = offset / response**2 - 2 * vel / response
    return ((env.lag * acceleration + vel) / env.max_speed).clamp(-1, 1)


ENVIRONMENTS.register("spread", Environment(Spread, learner="masac", baselines={"assignment": assignment}))
