"""Tag: three chasers against two faster runners, who observe and want different things.

``python -m tools.defaults.tag check tag`` checks it; ``evaluate tag --policy chase_and_flee`` flies the plan, and in
Python ``ul.cross_play({"plan": "chase_and_flee", "random": "random"}, Tag())`` lets it meet random actions.
"""

import math
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

import uavlab as ul

CHASERS, RUNNERS = 3, 2
HEADINGS = 16  # that the plan of runners compares
AHEAD = 0.3  # s that the plan of runners looks ahead
LEAD = 0.6  # s that the plan of chasers looks ahead at most


@ul.tensors
class State:
    """State of a batch of worlds; chasers have the first numbers."""

    pos: Float[Tensor, "B A 2"]  # units
    vel: Float[Tensor, "B A 2"]  # units/s
    step: Int[Tensor, " B"]


@ul.env("tag")
class Tag:
    """Three chasers touch two runners, who are faster, in the square from -1 to 1.

    An action is a force in x and y. All start at rest anywhere in the square, and stop at its walls. A touch changes
    nothing but rewards: all chasers are rewarded for each runner that one of them touches after a step, and the runner
    pays. In addition, each chaser pays for its distance to the nearest runner. A chaser observes its velocity and
    place, the offsets to the others, and the velocities of the runners; a runner the same but for velocities of others.

    Attributes:
        reach: Distance below which a chaser touches a runner (units).
        chaser_speed: Highest speed of chasers (units/s).
        runner_speed: Highest speed of runners (units/s).
        chaser_force: Acceleration of chasers by a full action (units/s^2).
        runner_force: Acceleration of runners by a full action (units/s^2).
        drag: Share of the velocity that is lost per second (1/s).
        distance_cost: For a chaser, per step and unit to the nearest runner.
        horizon: Steps of an episode.
    """

    reach: Annotated[float, Gt(0)] = 0.15
    chaser_speed: Annotated[float, Gt(0)] = 1.0
    runner_speed: Annotated[float, Gt(0)] = 1.3
    chaser_force: Annotated[float, Gt(0)] = 3.0
    runner_force: Annotated[float, Gt(0)] = 4.0
    drag: Annotated[float, Gt(0), Le(10)] = 2.5
    distance_cost: Annotated[float, Ge(0)] = 0.1
    horizon: Annotated[int, Gt(0)] = 50
    dt: ClassVar[float] = 0.1
    metrics: ClassVar = (ul.Metric("touches", "sum", bounds=(0.0, math.inf)),)
    score: ClassVar = {"touches": 1.0}
    group_scores: ClassVar = {"chasers": {"touches": 1.0}, "runners": {"touches": -1.0}}

    @property
    def spec(self) -> ul.EnvSpec:
        """Shapes, limits and noise."""
        offsets = 2 * (CHASERS + RUNNERS - 1)
        return ul.team_spec(
            ul.Group("chasers", CHASERS, obs=4 + offsets + 2 * RUNNERS, action=2),
            ul.Group("runners", RUNNERS, obs=4 + offsets, action=2),
            horizon=self.horizon,
            dt=self.dt,
            initial_noise=2 * (CHASERS + RUNNERS),
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw places."""
        pos = (2 * noise - 1).view(-1, CHASERS + RUNNERS, 2)
        return State(pos, torch.zeros_like(pos), torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Change velocities by force, drag and the highest speed, then places; walls stop."""
        force = each(state.pos, self.chaser_force, self.runner_force)
        vel = state.vel * (1 - self.drag * self.dt) + self.dt * force * action.clamp(-1, 1)
        speed = vel.norm(dim=-1, keepdim=True)
        vel = vel * (each(state.pos, self.chaser_speed, self.runner_speed) / speed.clamp_min(1e-6)).clamp_max(1)
        free = state.pos + self.dt * vel
        pos = free.clamp(-1, 1)
        return State(pos, torch.where(pos == free, vel, 0.0), state.step + 1)

    def observe(self, state: State) -> Float[Tensor, "B A O"]:
        """Return the observations of both groups, see the class."""
        own = torch.cat((state.vel, state.pos), -1)
        chaser, runner = state.pos.split((CHASERS, RUNNERS), 1)
        fast = state.vel[:, None, CHASERS:].expand(-1, CHASERS, -1, -1).flatten(2)
        chasers = (own[:, :CHASERS], others(chaser), offsets(chaser, runner), fast)
        runners = (own[:, CHASERS:], others(runner), offsets(runner, chaser))
        return ul.join_groups(self.spec, {"chasers": torch.cat(chasers, -1), "runners": torch.cat(runners, -1)})

    def reward(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> Float[Tensor, "B A"]:
        """Return the reward of each agent, see the class."""
        touched = self.touched(after).to(after.pos.dtype)
        chasers = touched.sum(1, keepdim=True) - self.distance_cost * self.gap(after).amin(2)
        return ul.join_groups(self.spec, {"chasers": chasers, "runners": -touched})

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return that no task has ended."""
        return torch.zeros_like(state.pos[..., 0], dtype=torch.bool)

    def measure(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the number of runners that are touched."""
        return {"touches": self.touched(after).to(after.pos.dtype).sum(1)}

    def gap(self, state: State) -> Float[Tensor, "B C R"]:
        """Return the distance from each chaser to each runner."""
        return (state.pos[:, :CHASERS, None] - state.pos[:, None, CHASERS:]).norm(dim=-1)

    def touched(self, state: State) -> Bool[Tensor, "B R"]:
        """Return which runners are touched."""
        return (self.gap(state) < self.reach).any(1)


def each(like: Tensor, chaser: float, runner: float) -> Float[Tensor, "A 1"]:
    """Return a number per agent, one value for chasers and another for runners."""
    first = torch.arange(CHASERS + RUNNERS, device=like.device)[:, None] < CHASERS
    return torch.where(first, torch.full_like(first, chaser, dtype=like.dtype), runner)


def offsets(here: Float[Tensor, "B I 2"], there: Float[Tensor, "B J 2"]) -> Float[Tensor, "B I 2*J"]:
    """Return the offsets from each place to each other place."""
    return (there[:, None] - here[:, :, None]).flatten(2)


def others(pos: Float[Tensor, "B I 2"]) -> Float[Tensor, "B I 2*I-2"]:
    """Return the offsets from each of a group to its others, the one with the next number first."""
    turn = torch.arange(pos.shape[1], device=pos.device)
    return (pos[:, (turn[:, None] + turn[1:]) % len(turn)] - pos[:, :, None]).flatten(2)


@ul.baseline("tag")
def chase_and_flee(env: Tag, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly chasers to where the nearest runner will be, and runners to the place that is farthest from any chaser.

    Runners compare the places that they would reach in ``AHEAD`` seconds, as if chasers flew on for half that time.
    """
    (chaser, runner), (chasing, running) = (x.split((CHASERS, RUNNERS), 1) for x in (state.pos, state.vel))
    goal = (runner[:, None] + running[:, None] * (env.gap(state) / 2).clamp_max(LEAD)[..., None]).clamp(-1, 1)
    nearest = env.gap(state).argmin(2)[..., None, None].expand(-1, -1, 1, 2)
    chase = goal.gather(2, nearest)[:, :, 0] - chaser
    angle = torch.arange(HEADINGS, device=chaser.device, dtype=chaser.dtype) * (2 * math.pi / HEADINGS)
    heading = torch.stack((angle.cos(), angle.sin()), -1)
    place = (runner[:, :, None] + env.runner_speed * AHEAD * heading).clamp(-1, 1)  # B R H 2
    danger = (chaser + chasing * AHEAD / 2).clamp(-1, 1)
    safety = (place[:, :, :, None] - danger[:, None, None]).norm(dim=-1).amin(-1)
    flee = heading[safety.argmax(-1)]
    wanted = torch.cat((torch.nn.functional.normalize(chase, dim=-1) * env.chaser_speed, flee * env.runner_speed), 1)
    return (4 * (wanted - state.vel)).clamp(-1, 1)


if __name__ == "__main__":
    ul.main()
