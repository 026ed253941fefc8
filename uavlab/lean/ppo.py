"""Multi-agent PPO (MAPPO), whole in one file: a leader flies to a goal, a follower keeps formation.

    python -m uavlab.lean.ppo  # or python ppo.py: the file needs torch alone

The file reads from top to bottom: settings, random numbers, worlds, networks, learner, loop. The task is that of the
preset ``leader_follower_quick``, the numbers are those of the learner ``mappo``, and the package computes the same from
the same random numbers; it is this file made general. Every agent i has an actor and a critic V_i of the whole team:

* advantage  A_t = delta_t + gamma lambda A_t+1 with delta_t = r_t + gamma V(s_t+1) - V(s_t)             ``advantages``
* ratio      rho = pi_i(a_i | o_i) / pi_old_i(a_i | o_i)
* actor      minimize the mean of -min(rho A, clip(rho, 1 - c, 1 + c) A) - beta H(pi_i)                  ``actor_loss``
* critic     minimize the mean of (V(s) - A_t - V_old(s_t))^2, in units of the spread of returns        ``critic_loss``

An actor's steps in an update end once its policy is farther than ``target_kl`` from the old one.

Axes: B worlds, T steps, N = T B rows of an update, A agents (0 is the leader, 1 the follower), O observation features,
D action dimensions, G networks, P parameters of one network.

Source:
    Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7; Schulman et al. 2016, "High-Dimensional
    Continuous Control Using Generalized Advantage Estimation", eq. 16; critics of the team and normalised returns as in
    Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games". Task: Fang, Yang, Pan 2024,
    SCIENTIA SINICA Informationis 54(8), doi 10.1360/SSI-2024-0050.
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

    updates: int = 300  # updates to make; the worlds take ``rollout_steps`` steps before each
    worlds: int = 64  # worlds that are stepped together (B)
    rollout_steps: int = 32  # steps of every world per update (T)
    horizon: int = 1_000  # steps after which an episode is truncated
    epochs: int = 5  # passes of an update over its rows
    minibatches: int = 4  # minibatches of each pass, with one gradient step each
    hidden: int = 128  # width of the hidden layers
    gamma: float = 0.95  # discount per step
    lam: float = 0.95  # Lambda of the advantages: 0 for one-step errors, 1 for Monte Carlo returns
    lr: float = 1e-3  # Adam's learning rate of the actors
    critic_lr: float = 1e-3  # Adam's learning rate of the critics
    clip: float = 0.5  # largest gradient norm of an actor, and of a critic
    clip_ratio: float = 0.2  # range around 1 within which the ratio of probabilities is rewarded
    target_kl: float = 0.05  # distance from the old policy (nats) at which the actor's steps of an update end
    entropy: float = 0.01  # initial weight of the policy's entropy in the actor's loss
    entropy_updates: int = 1_000  # updates over which this weight falls to zero
    log_std_low: float = -2.5  # smallest log standard deviation of the Gaussian before squashing
    log_std_high: float = 0.0  # largest log standard deviation
    evaluate_every: int = 50  # updates between evaluations
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
POOL_DEPTH = 8  # new worlds in reserve for each running one and update


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
class Steps:
    """Steps of worlds; a world that ends is replaced, so several steps may cross the ends of episodes."""

    obs: Tensor  # T B A O
    action: Tensor  # T B A D
    reward: Tensor  # T B A
    next_obs: Tensor  # T B A O: after the action, before an ended world is replaced
    terminated: Tensor  # T B: the leader is at the goal or lost, so no value follows
    ended: Tensor  # T B: terminated or out of time, so later steps tell nothing of the value


class Simulation:
    """Worlds that go on from step to step. A world that ends is replaced by a new one from a pool."""

    def __init__(self, settings: Settings, noise: Noise) -> None:
        self.noise, self.count, self.horizon = noise, settings.worlds, settings.horizon
        self.worlds = start_worlds(noise.uniform("worlds", self.count, START_NUMBERS))
        self.obs = observe(self.worlds)
        self.replaced = torch.zeros(self.count, dtype=torch.int64)  # how often each world was replaced
        self.fill_pool()

    def fill_pool(self) -> None:
        """Draw the uniform numbers of new worlds."""
        self.pool = self.noise.uniform("pool", POOL_DEPTH, self.count, START_NUMBERS)

    def step(self, action: Tensor) -> Steps:
        """Step every world once, and replace those that ended; return the step without the axis T."""
        after = move(self.worlds, action)
        won, crashed = outcome(after)
        terminated = won | crashed
        ended = terminated | (after.step >= self.horizon)
        step = Steps(self.obs, action, reward(after), observe(after), terminated, ended)
        self.replace_ended(after, step.next_obs, ended)
        return step

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

MEAN_BOUND = 3.0  # of a Gaussian before squashing: beyond, actions round to the border and gradients explode
INSIDE = 1 - 1e-6  # largest action whose density is evaluated
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
RETURN_MEMORY = 0.9  # weight of the past in the moving moments of returns, per update


@dataclass(frozen=True)
class Samples:
    """Rows of an update."""

    obs: Tensor  # N A O
    action: Tensor  # N A D
    log_prob: Tensor  # N A: of the old policy
    advantage: Tensor  # N A
    target: Tensor  # N A: of the critics

    def take(self, index: Tensor) -> "Samples":
        """Return some of the rows."""
        return Samples(**{name: tensor[index] for name, tensor in vars(self).items()})


class ReturnScale:
    """Moving mean and spread of each agent's returns, by which critics learn normalised values.

    Numbers are float64: a difference of float32 squares would lose a spread that is a thousandth of the mean.
    """

    def __init__(self) -> None:
        self.mean, self.square = torch.zeros(2, AGENTS, dtype=torch.float64)
        self.weight = 0.0

    def follow(self, returns: Tensor) -> None:
        """Take the returns of an update (N A) into account."""
        returns = returns.double()
        self.mean = RETURN_MEMORY * self.mean + (1 - RETURN_MEMORY) * returns.mean(0)
        self.square = RETURN_MEMORY * self.square + (1 - RETURN_MEMORY) * returns.square().mean(0)
        self.weight = RETURN_MEMORY * self.weight + (1 - RETURN_MEMORY)

    def scale(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (both A); before the first return 0 and 1."""
        if self.weight == 0:
            return torch.zeros(AGENTS, dtype=dtype), torch.ones(AGENTS, dtype=dtype)
        mean, square = self.mean / self.weight, self.square / self.weight
        spread = (square - mean.square()).clamp_min(0).sqrt()
        return mean.to(dtype), torch.maximum(spread, 1e-4 * mean.abs()).clamp_min(1e-6).to(dtype)


class PPO:
    """Actors and critics of all agents, and their update."""

    def __init__(self, settings: Settings, noise: Noise) -> None:
        self.settings, self.updates, self.returns = settings, 0, ReturnScale()
        self.actor_net = MLP(FEATURES, settings.hidden, 2 * ACTIONS)
        self.critic_net = MLP(AGENTS * FEATURES, settings.hidden, 1)
        center, spread = survey(noise)
        actor = self.actor_net.initial(noise.uniform("actor", AGENTS, self.actor_net.count), center, spread)
        team_center, team_spread = center.flatten().expand(AGENTS, -1), spread.flatten().expand(AGENTS, -1)
        unit = noise.uniform("critic", AGENTS, self.critic_net.count)
        critic = self.critic_net.initial(unit, team_center, team_spread)
        self.actor = actor.requires_grad_()  # A P
        self.critic = critic.requires_grad_()  # A P
        self.actor_rows = self.actor.detach().unbind()  # the same memory, row by row, because an actor may skip steps
        self.actor_adams = [adam(row, settings.lr) for row in self.actor_rows]
        self.critic_adam = adam(self.critic, settings.critic_lr)

    @torch.no_grad()
    def act(self, obs: Tensor, normal: Tensor) -> Tensor:
        """Return actions (B A D) for observations (B A O) and standard normal noise (B A D)."""
        mean, log_std = self.gaussian(obs)
        return torch.tanh(torch.addcmul(mean, log_std.exp(), normal))  # mean + std normal

    def gaussian(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations before squashing (both N A D), bounded smoothly."""
        mean, log_std = self.actor_net(self.actor, obs.transpose(0, 1)).transpose(0, 1).chunk(2, -1)
        low, high = self.settings.log_std_low, self.settings.log_std_high
        middle, half = (low + high) / 2, (high - low) / 2
        return MEAN_BOUND * torch.tanh(mean / MEAN_BOUND), middle + half * torch.tanh((log_std - middle) / half)

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log densities of actions, and entropies of the policy before squashing (both N A)."""
        mean, log_std = self.gaussian(obs)
        action = action.clamp(-INSIDE, INSIDE)
        deviation = (torch.atanh(action) - mean) * (-log_std).exp()
        log_prob = -0.5 * deviation.square() - log_std - HALF_LOG_2PI - torch.log1p(-action.square())
        return log_prob.sum(-1), (log_std + HALF_LOG_2PI + 0.5).sum(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of each agent (N A), in units of its returns' spread, from observations of the team."""
        team = obs.flatten(1).expand(AGENTS, -1, -1)  # A N inputs
        return self.critic_net(self.critic, team).transpose(0, 1)[..., 0]

    @torch.no_grad()
    def samples(self, steps: Steps) -> Samples:
        """Return the rows of an update, with advantages and targets; take the returns into account."""
        shape = steps.reward.shape
        obs, action = steps.obs.flatten(0, 1), steps.action.flatten(0, 1)
        center, spread = self.returns.scale(obs.dtype)
        value = (center + spread * self.value(obs)).view(shape)
        next_value = (center + spread * self.value(steps.next_obs.flatten(0, 1))).view(shape)
        advantage = advantages(steps, value, next_value, self.settings.gamma, self.settings.lam)
        returns, advantage = (advantage + value).flatten(0, 1), advantage.flatten(0, 1)
        self.returns.follow(returns)
        center, spread = self.returns.scale(obs.dtype)
        centered = advantage - advantage.mean(0)
        return Samples(
            obs=obs,
            action=action,
            log_prob=self.evaluate_actions(obs, action)[0],
            advantage=centered / centered.square().mean(0).sqrt().clamp_min(1e-6),
            target=(returns - center) / spread,
        )

    def critic_loss(self, rows: Samples) -> Tensor:
        """Return the mean squared error over rows, summed over agents."""
        return (self.value(rows.obs) - rows.target).square().mean(0).sum()

    def actor_loss(self, rows: Samples, beta: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses of all actors, summed; distances from the old policies, and entropies (both A).

        The distance is the mean of rho - 1 - log rho, an estimate of the divergence that is never negative.
        """
        log_prob, entropy = self.evaluate_actions(rows.obs, rows.action)
        change = log_prob - rows.log_prob
        ratio, clip = change.exp(), self.settings.clip_ratio
        clipped = ratio.clamp(1 - clip, 1 + clip)
        objective = torch.minimum(ratio * rows.advantage, clipped * rows.advantage) + beta * entropy
        return -objective.mean(0).sum(), (ratio - 1 - change).detach().mean(0), entropy.detach().mean(0)

    def update(self, steps: Steps, noise: Noise) -> dict[str, Tensor]:
        """Train on the steps of all worlds, ``epochs`` times each."""
        settings, samples = self.settings, self.samples(steps)
        beta = settings.entropy * (1 - min(self.updates / settings.entropy_updates, 1))
        active = torch.ones(AGENTS, dtype=torch.bool)  # actors that are near their old policies
        order = noise.uniform("shuffle", settings.epochs, len(samples.obs)).argsort(-1)
        for epoch in order:
            for index in epoch.chunk(settings.minibatches):
                active, metrics = self.step(samples.take(index), beta, active)
        self.updates += 1
        return metrics

    def step(self, rows: Samples, beta: float, active: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Take a step of all critics, and of the actors that remain active (A), which are returned."""
        settings, critic_loss = self.settings, self.critic_loss(rows)
        self.critic.grad = clipped_gradient(critic_loss, self.critic, settings.clip)
        self.critic_adam.step()
        actor_loss, kl, entropy = self.actor_loss(rows, beta)
        active = active & (kl <= settings.target_kl)
        gradient = clipped_gradient(actor_loss, self.actor, settings.clip)
        for agent in active.nonzero()[:, 0]:
            self.actor_rows[agent].grad = gradient[agent]
            self.actor_adams[agent].step()
        return active, {"critic_loss": critic_loss.detach(), "entropy": entropy, "kl": kl}


def advantages(steps: Steps, value: Tensor, next_value: Tensor, gamma: float, lam: float) -> Tensor:
    """Return the generalized advantages A_t (T B A); after the last step and the end of an episode A_t+1 is 0."""
    value_follows = (~steps.terminated).to(value.dtype)[..., None]
    decay = gamma * lam * (~steps.ended).to(value.dtype)[..., None]
    delta = steps.reward + gamma * next_value * value_follows - value
    advantage, next_advantage = torch.zeros_like(steps.reward), torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        advantage[t] = next_advantage = torch.addcmul(delta[t], decay[t], next_advantage)  # delta + decay A_t+1
    return advantage


def adam(theta: Tensor, lr: float) -> torch.optim.Adam:
    """Return the optimizer of a matrix of parameters, or of one row."""
    return torch.optim.Adam([theta], lr=lr, eps=1e-5, fused=True)


def clipped_gradient(loss: Tensor, theta: Tensor, clip: float) -> Tensor:
    """Return the gradient for ``theta`` (G P); each row is clipped by its own norm."""
    (gradient,) = torch.autograd.grad(loss, theta)
    norm = gradient.norm(dim=1, keepdim=True)
    return gradient * (clip / (norm + 1e-6)).clamp(max=1)


# -------------------------------------------------------------------------------------------------------------- loop


def rollout(simulation: Simulation, learner: PPO, noise: Noise) -> Steps:
    """Return the next ``rollout_steps`` steps of every world."""
    settings, steps = learner.settings, []
    for _ in range(settings.rollout_steps):
        action = learner.act(simulation.obs, noise.normal("act", settings.worlds, AGENTS, ACTIONS))
        steps.append(simulation.step(action))
    simulation.fill_pool()
    return Steps(**{name: torch.stack([getattr(step, name) for step in steps]) for name in vars(steps[0])})


def train(settings: Settings, noise: Noise) -> Iterator[tuple[int, PPO, dict[str, Tensor]]]:
    """Train a team; yield the number of each update, the learner, and metrics."""
    learner = PPO(settings, noise)
    simulation = Simulation(settings, noise)
    for number in range(1, settings.updates + 1):
        steps = rollout(simulation, learner, noise)
        yield number, learner, learner.update(steps, noise)


def evaluate(learner: PPO, noise: Noise) -> tuple[float, float]:
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
    parser = argparse.ArgumentParser(description="Train a leader and a follower by MAPPO, in one file.")
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
