"""Multi-agent soft actor-critic (MASAC), whole in one file: a leader flies to a goal, a follower keeps formation.

    python -m uavlab.lean.masac  # or python masac.py: the file needs torch alone

The file reads from top to bottom: settings, random numbers, worlds, replay, networks, learner, loop. Task and numbers
are those of the preset ``leader_follower_quick``, and the package computes the same from the same random numbers; it is
this file made general. Every agent i has an actor, a pair of critics of the whole team, and a temperature alpha_i:

* target       y_i = r_i + gamma (1 - d) (min_k Q'_ik(s', a') - alpha_i log pi_i(a'_i | o'_i))               ``target``
* critics      minimize the mean of (Q_ik(s, a) - y_i)^2 over rows, for both critics k                  ``critic_loss``
* actor        minimize the mean of alpha_i log pi_i(a_i | o_i) - min_k Q_ik(s, a), only a_i varying     ``actor_loss``
* temperature  minimize -log alpha_i (log pi_i + target entropy)                                             ``update``
* targets      theta' <- theta' + tau (theta - theta')                                                       ``update``

Axes: B worlds, N rows of a batch, A agents (0 is the leader, 1 the follower), O observation features, D action
dimensions, G networks, P parameters of one network.

Source:
    Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"; critics of the team as in Lowe et al. 2017,
    "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments". Task: Fang, Yang, Pan 2024, SCIENTIA
    SINICA Informationis 54(8), doi 10.1360/SSI-2024-0050.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# ---------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """Numbers of a run."""

    updates: int = 8_000  # updates to make; the worlds take one step before each
    worlds: int = 64  # worlds that are stepped together (B)
    horizon: int = 1_000  # steps after which an episode is truncated
    learning_starts: int = 2_048  # rows collected with random actions before the first update
    capacity: int = 100_000  # rows that replay holds
    batch: int = 128  # rows of an update (N)
    hidden: int = 128  # width of the hidden layers
    gamma: float = 0.95  # discount per step
    tau: float = 0.01  # weight of the critics in the moving average of the target critics, per update
    lr: float = 1e-3  # Adam's learning rate of the actors
    critic_lr: float = 3e-3  # Adam's learning rate of the critics
    alpha_lr: float = 3e-4  # Adam's learning rate of the log temperatures
    alpha: float = 1.0  # initial temperature
    clip: float = 1.0  # largest gradient norm of one agent's actor, and of its pair of critics
    log_std_low: float = -5.0  # smallest log standard deviation of the Gaussian before squashing
    log_std_high: float = 2.0  # largest log standard deviation
    evaluate_every: int = 500  # updates between evaluations
    evaluate_episodes: int = 100  # episodes of an evaluation


# ---------------------------------------------------------------------------------------------------- random numbers


class Noise:
    """Random numbers. Names say what they are for, so that an object that replaces this one can repeat known ones."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator)

    def normal(self, name: str, *shape: int) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(shape, generator=self.generator)

    def integers(self, name: str, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, generator=self.generator)


# ------------------------------------------------------------------------------------------------------------ worlds
# Lengths are in px (10 px stand for 1 km), x to the right and y downwards; headings are in rad, counter-clockwise from
# x. A step takes 1 s, so a speed in px/s is also the way of a step in px.

AGENTS, FEATURES, ACTIONS = 2, 7, 2  # A, O, D
START_NUMBERS = 12  # uniform numbers that a new world needs
LEFT, TOP, RIGHT, BOTTOM = 50.0, 50.0, 750.0, 650.0  # the area, to which places are clamped

MOST_CHANGE = ((0.3, 0.6), (0.6, 1.2))  # of speed (px/s) and heading (rad) in a step, of leader and follower
LEAST_SPEED, MOST_SPEED = (10.0, 10.0), (20.0, 40.0)  # px/s, of leader and follower

GOAL_RADIUS, CRASH_RADIUS, NEAR_RADIUS, FORMATION_RADIUS, BORDER = 40.0, 20.0, 40.0, 50.0, 50.0
GOAL_REWARD, CRASH_COST, MATCH_BONUS = 1000.0, 1000.0, 1.0
NEAR_COST, BORDER_COST, DISTANCE_COST, APART_COST = 2.0, 1.0, 0.005, 0.005  # the last two for each px

LENGTH, SPEED, TURN = 1000.0, 30.0, 360 / 57.3  # units of observations
POOL_DEPTH, POOL_STEPS = 8, 32  # new worlds in reserve for each running one, and steps until they are drawn anew


@dataclass(frozen=True)
class Worlds:
    """State of B worlds."""

    place: Tensor  # B A 2
    speed: Tensor  # B A
    heading: Tensor  # B A
    goal: Tensor  # B 2
    obstacle: Tensor  # B 2
    step: Tensor  # B: number of steps so far


def start_worlds(unit: Tensor) -> Worlds:
    """Turn uniform numbers (B 12) into new worlds; places and speeds are whole numbers."""
    agent, goal, obstacle = unit.split([4 * AGENTS, 2, 2], dim=1)
    agent = agent.view(-1, AGENTS, 4)
    return Worlds(
        place=whole_number(agent[..., :2], [[300, 500], [400, 500]], [100, 50]),
        speed=whole_number(agent[..., 2], [10, 20], [10, 10]),
        heading=agent[..., 3] * (2 * math.pi),
        goal=whole_number(goal, [300, 150], [200, 50]),
        obstacle=whole_number(obstacle, [350, 400], [0, 50]),
        step=torch.zeros(len(unit), dtype=torch.int64),
    )


def whole_number(unit: Tensor, least: list, span: list) -> Tensor:
    """Turn uniform numbers into whole ones from ``least`` to ``least`` + ``span``."""
    return torch.tensor(least) + (unit * (torch.tensor(span) + 1)).floor()


def move(worlds: Worlds, action: Tensor) -> Worlds:
    """Move the agents by one step. Actions (B A 2) in [-1, 1] change speed and heading."""
    change = action * action.new_tensor(MOST_CHANGE)
    low, high = action.new_tensor(LEAST_SPEED), action.new_tensor(MOST_SPEED)
    speed = (worlds.speed + change[..., 0]).clamp(low, high)
    heading = (worlds.heading + change[..., 1]).remainder(2 * math.pi)
    x = (worlds.place[..., 0] + speed * heading.cos()).clamp(LEFT, RIGHT)
    y = (worlds.place[..., 1] - speed * heading.sin()).clamp(TOP, BOTTOM)
    return Worlds(torch.stack((x, y), -1), speed, heading, worlds.goal, worlds.obstacle, worlds.step + 1)


def observe(worlds: Worlds) -> Tensor:
    """Return what the agents observe (B A O).

    Both observe their place, speed and heading; the leader also the goal and whether an obstacle is near, the follower
    also place and speed of the leader.
    """
    near = (distance(worlds.place[:, 0], worlds.obstacle) < NEAR_RADIUS).to(worlds.speed.dtype)
    leader = torch.cat((worlds.goal / LENGTH, near[:, None]), -1)
    follower = torch.cat((worlds.place[:, 0] / LENGTH, worlds.speed[:, :1] / SPEED), -1)
    motion = torch.stack((worlds.speed / SPEED, worlds.heading / TURN), -1)
    return torch.cat((worlds.place / LENGTH, motion, torch.stack((leader, follower), 1)), -1)


def outcome(worlds: Worlds) -> tuple[Tensor, Tensor]:
    """Return in which worlds the leader is at the goal, and in which it is lost at the obstacle (both B)."""
    leader = worlds.place[:, 0]
    won = distance(leader, worlds.goal) < GOAL_RADIUS
    return won, (distance(leader, worlds.obstacle) < CRASH_RADIUS) & ~won


def reward(worlds: Worlds) -> Tensor:
    """Return the reward of each agent (B A) for the state after a step.

    The leader is paid for the goal, and pays for a crash and for each px to the goal. Both are paid while the follower
    is in formation, and pay for each px to it otherwise. Each pays for an obstacle or an edge of the area nearby.
    """
    dtype, place = worlds.speed.dtype, worlds.place
    won, crashed = (flag.to(dtype) for flag in outcome(worlds))
    gap = distance(place[:, 0], place[:, 1])
    formation = torch.where(gap < FORMATION_RADIUS, MATCH_BONUS, -APART_COST * gap)  # B, for both agents
    near = distance(place, worlds.obstacle[:, None]) < NEAR_RADIUS  # B A
    x, y = place.unbind(-1)
    edge = (x <= LEFT + BORDER) | (x >= RIGHT - BORDER) | (y <= TOP + BORDER) | (y >= BOTTOM - BORDER)
    leader = GOAL_REWARD * won - CRASH_COST * crashed - DISTANCE_COST * distance(place[:, 0], worlds.goal)
    task = torch.stack((leader + formation, formation), 1)
    return task - (NEAR_COST * near.to(dtype) + BORDER_COST * edge.to(dtype))


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance between points (... 2)."""
    return torch.hypot(*(a - b).unbind(-1))


@dataclass(frozen=True)
class Transitions:
    """Steps of worlds, the rows of replay and of batches."""

    obs: Tensor  # N A O
    action: Tensor  # N A D
    reward: Tensor  # N A
    next_obs: Tensor  # N A O: after the action, before an ended world is replaced
    terminated: Tensor  # N: the leader is at the goal or lost, so no value follows; false where time ran out


class Simulation:
    """Worlds that go on from step to step. A world that ends is replaced by a new one from a pool."""

    def __init__(self, settings: Settings, noise: Noise) -> None:
        self.noise, self.count, self.horizon = noise, settings.worlds, settings.horizon
        self.worlds = start_worlds(noise.uniform("worlds", self.count, START_NUMBERS))
        self.obs = observe(self.worlds)
        self.replaced = torch.zeros(self.count, dtype=torch.int64)  # how often each world was replaced
        self.steps = 0
        self.fill_pool()

    def fill_pool(self) -> None:
        """Draw the uniform numbers of new worlds."""
        self.pool = self.noise.uniform("pool", POOL_DEPTH, self.count, START_NUMBERS)

    def step(self, action: Tensor) -> Transitions:
        """Step every world once, and replace those that ended."""
        after = move(self.worlds, action)
        won, crashed = outcome(after)
        rows = Transitions(self.obs, action, reward(after), observe(after), won | crashed)
        self.replace_ended(after, rows.next_obs, rows.terminated | (after.step >= self.horizon))
        self.steps += 1
        if self.steps % POOL_STEPS == 0:
            self.fill_pool()
        return rows

    def replace_ended(self, after: Worlds, next_obs: Tensor, done: Tensor) -> None:
        """Go on with the worlds ``after`` a step, and with new ones where they are ``done`` (B)."""
        self.worlds, self.obs = after, next_obs
        if done.any():
            new = start_worlds(self.pool[self.replaced % POOL_DEPTH, torch.arange(self.count)])
            self.worlds = where_worlds(done, new, after)
            self.obs = observe(self.worlds)
            self.replaced += done


def where_worlds(done: Tensor, new: Worlds, old: Worlds) -> Worlds:

    def where(name: str, old_part: Tensor) -> Tensor:
        return torch.where(done.view(-1, *[1] * (old_part.dim() - 1)), getattr(new, name), old_part)

    return Worlds(**{name: where(name, old_part) for name, old_part in vars(old).items()})


# ------------------------------------------------------------------------------------------------------------ replay


class Replay:
    """The last ``capacity`` rows, in a ring: new rows overwrite the oldest ones."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.cursor, self.size = capacity, 0, 0
        self.rows = Transitions(
            obs=torch.zeros(capacity, AGENTS, FEATURES),
            action=torch.zeros(capacity, AGENTS, ACTIONS),
            reward=torch.zeros(capacity, AGENTS),
            next_obs=torch.zeros(capacity, AGENTS, FEATURES),
            terminated=torch.zeros(capacity, dtype=torch.bool),
        )

    def add(self, rows: Transitions) -> None:
        """Write rows, one for each world, at the cursor."""
        count = len(rows.reward)
        slot = (self.cursor + torch.arange(count)) % self.capacity
        for name, memory in vars(self.rows).items():
            memory[slot] = getattr(rows, name)
        self.cursor = (self.cursor + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def take(self, slot: Tensor) -> Transitions:
        """Return a copy of the rows in some slots (N)."""
        return Transitions(**{name: memory[slot] for name, memory in vars(self.rows).items()})


# ---------------------------------------------------------------------------------------------------------- networks


@dataclass(frozen=True)
class MLP:
    """G networks with two hidden layers with LayerNorm and ReLU, evaluated together.

    The parameters of a network are one row of a matrix (G P). So a layer of all networks is one batched product, and
    gradient norms, Adam and the moving average of targets are each one operation for all networks.
    """

    inputs: int
    hidden: int
    outputs: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of weight and bias, layer by layer, in the order of a row."""
        widths = [(self.inputs, self.hidden), (self.hidden, self.hidden), (self.hidden, self.outputs)]
        return [shape for width in widths for shape in (width, (1, width[1]))]

    @property
    def count(self) -> int:
        """Parameters of one network (P)."""
        return sum(rows * columns for rows, columns in self.shapes)

    def layers(self, theta: Tensor) -> list[Tensor]:
        """View a matrix of parameters (G P) as weights (G inputs outputs) and biases (G 1 outputs)."""
        pieces = theta.split([rows * columns for rows, columns in self.shapes], dim=1)
        return [piece.view(-1, *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """Evaluate network g on rows x[g]: G N inputs -> G N outputs."""
        w1, b1, w2, b2, w3, b3 = self.layers(theta)
        x = F.relu(F.layer_norm(torch.baddbmm(b1, x, w1), (self.hidden,)))
        x = F.relu(F.layer_norm(torch.baddbmm(b2, x, w2), (self.hidden,)))
        return torch.baddbmm(b3, x, w3)

    def initial(self, unit: Tensor, center: Tensor, spread: Tensor) -> Tensor:
        """Turn uniform numbers (G P) into initial parameters (G P).

        Weights are He et al.'s (2015, eq. 10), those of the last layer small, so that policies start near zero. The
        first layer takes inputs (x - center) / spread (G inputs): LayerNorm keeps only the direction of its input, so
        an untrained network could not distinguish inputs that vary little around a large mean.
        """
        bounds = math.sqrt(6 / self.inputs), 0.0, math.sqrt(6 / self.hidden), 0.0, 0.01 * math.sqrt(3), 0.0
        pieces = zip(bounds, self.layers(unit), strict=True)
        w1, b1, *rest = (bound * (2 * piece - 1) for bound, piece in pieces)
        w1 = w1 / spread[..., None]
        b1 = b1 - center[:, None] @ w1
        return torch.cat([piece.flatten(1) for piece in (w1, b1, *rest)], 1)


def survey(noise: Noise) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of observations under random actions (both A O); of constant ones 1."""
    count = steps = 64
    worlds, observations = start_worlds(noise.uniform("survey", count, START_NUMBERS)), []
    for _ in range(steps):
        worlds = move(worlds, 2 * noise.uniform("survey", count, AGENTS, ACTIONS) - 1)
        observations.append(observe(worlds))
    obs = torch.cat(observations)
    spread = obs.std(0)
    return obs.mean(0), torch.where(spread > 1e-3, spread, 1.0)


# ----------------------------------------------------------------------------------------------------------- learner

TARGET_ENTROPY = -float(ACTIONS)  # nats per agent, to which the temperature regulates the policy
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class MASAC:
    """Actors, critics, target critics and temperatures of all agents, and their update."""

    def __init__(self, settings: Settings, noise: Noise) -> None:
        self.settings = settings
        self.actor_net = MLP(FEATURES, settings.hidden, 2 * ACTIONS)
        self.critic_net = MLP(AGENTS * (FEATURES + ACTIONS), settings.hidden, 1)
        center, spread = survey(noise)
        actor = self.actor_net.initial(noise.uniform("actor", AGENTS, self.actor_net.count), center, spread)
        team_center = torch.cat((center.flatten(), torch.zeros(AGENTS * ACTIONS))).expand(2 * AGENTS, -1)
        team_spread = torch.cat((spread.flatten(), torch.ones(AGENTS * ACTIONS))).expand(2 * AGENTS, -1)
        unit = noise.uniform("critic", AGENTS, 2, self.critic_net.count).flatten(0, 1)
        critic = self.critic_net.initial(unit, team_center, team_spread)
        self.actor = actor.requires_grad_()  # A P
        self.critic = critic.view(AGENTS, -1).requires_grad_()  # A 2P: a pair of critics for each agent
        self.target_critic = self.critic.detach().clone()
        self.log_alpha = torch.full((AGENTS, 1), math.log(settings.alpha), requires_grad=True)
        self.actor_adam = adam(self.actor, settings.lr)
        self.critic_adam = adam(self.critic, settings.critic_lr)
        self.alpha_adam = adam(self.log_alpha, settings.alpha_lr)

    @torch.no_grad()
    def act(self, obs: Tensor, normal: Tensor) -> Tensor:
        """Return actions (B A D) for observations (B A O) and standard normal noise (B A D)."""
        return self.sample_actions(obs, normal)[0]

    def sample_actions(self, obs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (N A D) of squashed Gaussians, and their log densities (N A)."""
        output = self.actor_net(self.actor, obs.transpose(0, 1)).transpose(0, 1)  # N A 2D
        mean, log_std = output.chunk(2, -1)
        log_std = log_std.clamp(self.settings.log_std_low, self.settings.log_std_high)
        u = torch.addcmul(mean, log_std.exp(), normal)  # mean + std normal
        log_prob = -0.5 * normal.square() - log_std - HALF_LOG_2PI
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))  # log(1 - tanh(u)^2), without loss of digits
        return torch.tanh(u), (log_prob - log_slope).sum(-1)

    def values(self, critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Return the values of all critics (A 2 N) for observations (N A O) and joint actions (N A D, or A N A D)."""
        action = action.expand(AGENTS, *action.shape[-3:]).flatten(2)
        joint = torch.cat((obs.flatten(1).expand(AGENTS, -1, -1), action), -1)  # A N inputs
        value = self.critic_net(critic.view(2 * AGENTS, -1), joint.repeat_interleave(2, 0))
        return value.view(AGENTS, 2, -1)

    @torch.no_grad()
    def target(self, batch: Transitions, normal: Tensor) -> Tensor:
        """Return the targets y_i of the critics (A N)."""
        action, log_prob = self.sample_actions(batch.next_obs, normal)
        value = self.values(self.target_critic, batch.next_obs, action).amin(1)
        soft = value - self.log_alpha.exp() * log_prob.T
        value_follows = (~batch.terminated).to(soft.dtype)
        return torch.addcmul(batch.reward.T, value_follows, soft, value=self.settings.gamma)  # r + gamma (1 - d) soft

    def critic_loss(self, batch: Transitions, target: Tensor) -> Tensor:
        """Return the mean squared error over rows, summed over agents and critics."""
        error = self.values(self.critic, batch.obs, batch.action) - target[:, None]
        return error.square().mean(-1).sum()

    def actor_loss(self, batch: Transitions, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of all actors, summed, and the mean log densities of their actions (A).

        Agent i's value depends on all actions, but only a_i has a gradient there: the others are those of current
        policies, as they are.
        """
        action, log_prob = self.sample_actions(batch.obs, normal)
        varies = torch.eye(AGENTS, dtype=torch.bool)[:, None, :, None]  # A 1 A 1
        joint = torch.where(varies, action, action.detach())  # A N A D
        value = self.values(self.critic, batch.obs, joint).amin(1)
        loss = (self.log_alpha.detach().exp() * log_prob.T - value).mean(-1)
        return loss.sum(), log_prob.detach().mean(0)

    def update(self, batch: Transitions, noise: Noise) -> dict[str, Tensor]:
        """Take one step of all critics, then of all actors and temperatures, then move the target critics."""
        settings, shape = self.settings, batch.action.shape
        target = self.target(batch, noise.normal("next_action", *shape))
        critic_loss = self.critic_loss(batch, target)
        descend(critic_loss, self.critic, self.critic_adam, settings.clip)
        actor_loss, log_prob = self.actor_loss(batch, noise.normal("action", *shape))
        descend(actor_loss, self.actor, self.actor_adam, settings.clip)
        alpha_loss = -(self.log_alpha[:, 0] * (log_prob + TARGET_ENTROPY)).sum()
        descend(alpha_loss, self.log_alpha, self.alpha_adam, clip=math.inf)
        self.target_critic.lerp_(self.critic.detach(), settings.tau)
        return {"critic_loss": critic_loss.detach(), "entropy": -log_prob, "alpha": self.log_alpha.detach().exp()}


def adam(theta: Tensor, lr: float) -> torch.optim.Adam:
    """Return the optimizer of a matrix of parameters."""
    return torch.optim.Adam([theta], lr=lr, eps=1e-5, fused=True)


def descend(loss: Tensor, theta: Tensor, optimizer: torch.optim.Adam, clip: float) -> None:
    """Take one step of Adam down the gradient for ``theta`` alone; each row is clipped by its own norm."""
    (gradient,) = torch.autograd.grad(loss, theta)
    norm = gradient.norm(dim=1, keepdim=True)
    theta.grad = gradient * (clip / (norm + 1e-6)).clamp(max=1)
    optimizer.step()


# -------------------------------------------------------------------------------------------------------------- loop


def train(settings: Settings, noise: Noise) -> Iterator[tuple[int, MASAC, dict[str, Tensor]]]:
    """Train a team; yield the number of each update, the learner, and metrics."""
    learner = MASAC(settings, noise)
    simulation, replay = Simulation(settings, noise), Replay(settings.capacity)
    shape = settings.worlds, AGENTS, ACTIONS
    while replay.size < settings.learning_starts:
        replay.add(simulation.step(2 * noise.uniform("explore", *shape) - 1))
    for number in range(1, settings.updates + 1):
        action = learner.act(simulation.obs, noise.normal("act", *shape))
        replay.add(simulation.step(action))
        batch = replay.take(noise.integers("replay", replay.size, settings.batch))
        yield number, learner, learner.update(batch, noise)


def evaluate(learner: MASAC, noise: Noise) -> tuple[float, float]:
    """Return the shares of episodes in which the leader reaches the goal, and in which it is lost."""
    settings, count = learner.settings, learner.settings.evaluate_episodes
    worlds = start_worlds(noise.uniform("validate.start", count, START_NUMBERS))
    won = lost = torch.zeros(count, dtype=torch.bool)
    for _ in range(settings.horizon):
        worlds = move(worlds, learner.act(observe(worlds), noise.normal("validate.act", count, AGENTS, ACTIONS)))
        won_now, lost_now = outcome(worlds)
        live = ~(won | lost)  # worlds are stepped after their end, too, where nothing counts
        won, lost = won | (live & won_now), lost | (live & lost_now)
        if (won | lost).all():
            break
    return won.float().mean().item(), lost.float().mean().item()


def main() -> None:
    """Train by the settings of the command line, and print how often the goal is reached."""
    parser = argparse.ArgumentParser(description="Train a leader and a follower by MASAC, in one file.")
    parser.add_argument("--updates", type=int, default=Settings.updates)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worlds", type=int, default=Settings.worlds)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # networks are small: more threads would be slower
    settings = Settings(updates=arguments.updates, worlds=arguments.worlds)
    noise, judge = Noise(arguments.seed), Noise(arguments.seed + 1_000_003)  # evaluation does not change training
    began = time.monotonic()
    for number, learner, metrics in train(settings, noise):
        if number % settings.evaluate_every == 0 or number == settings.updates:
            completion, collision = evaluate(learner, judge)
            means = "  ".join(f"{name} {value.mean():.3g}" for name, value in metrics.items())
            print(
                f"update {number:5}  {time.monotonic() - began:5.1f} s  completion {completion:.2f}  "
                f"collision {collision:.2f}  {means}",
                flush=True,
            )


if __name__ == "__main__":
    main()
