"""PPO with memory: against the update written out over agents and time, states in worlds, batches and checkpoints."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.fixtures_config import sizes
from tests.support.recall import Recall
from tests.unit.collectors.test_fixed_length import Walk
from tests.unit.learners.ppo.test_algorithm import CONFIG, RT, SPEC, Slow, T, W, assert_equal, scale, steps
from tests.unit.learners.ppo.test_moves import MOVES, E, judge_move, moves, plain
from uavlab.collectors.fixed_length import FixedLengthCollector, FixedLengthConfig
from uavlab.collectors.world_source import survey
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import Batch, Scale, Steps, tree_map
from uavlab.evaluation import episodes
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.learners.ppo import ppo
from uavlab.learners.ppo.networks import Memory, RecurrentTeam, Sequences, sequences_of
from uavlab.learners.ppo.ppo import PPO, IPPOConfig, MAPPOConfig, sample_actions
from uavlab.nets import sequences
from uavlab.runtime.runtime import Runtime
from uavlab.training import training

M = 5
OWN = replace(CONFIG, memory=M)
CONFIGS = {
    "central": OWN,
    "not shared": replace(OWN, share=False),
    "shared critic": replace(OWN, share=False, critic="shared"),
    "own": IPPOConfig(**vars(OWN) | {"critic": "own"}),
    "stops": replace(OWN, share=False, target_kl=0.004),
}


def build(config: MAPPOConfig = OWN, seeds: tuple[int, ...] = (0,), rt: Runtime = RT) -> tuple[PPO, Streams]:
    rng = Streams(seeds, dtype=torch.float64)
    return PPO(config, SPEC, scale(len(seeds)), rng, rt, W), rng


class SlowMemory(Slow):
    """The learner written out; the memory before a step is computed from the start of the batch each time."""

    def __init__(self, learner: PPO) -> None:
        super().__init__(learner)
        self.critics = torch.zeros(W, SPEC.agents, M, dtype=torch.float64)

    def output(self, kind: str, data: Steps, t: int, w: int, i: int, after: bool = False) -> tuple[Tensor, Tensor]:
        """Return output and memory of a network in a step, or in one more with the observation after it."""
        actor = kind == "actor"
        net, theta, row = (
            (self.team.actor_net, self.actor, self.team.networks[i])
            if actor
            else (self.team.critic_net, self.critic, self.team.critics[i])
        )
        w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = (piece[0] for piece in net.unpack(theta[row][None]))
        memory = (self.actors if actor else self.critics)[w, i]
        inputs = [data.obs[0, s, w] for s in range(t + 1)] + ([data.next_obs[0, t, w]] if after else [])
        for s, obs in enumerate(inputs):
            if 0 < s <= t and data.ended[0, s - 1, w].all():
                memory = torch.zeros(M, dtype=torch.float64)
            x = obs.flatten() if not actor and self.config.critic != "own" else obs[i]
            for weight, bias in ((w1, b1), (w2, b2)):
                x = F.layer_norm(x @ weight + bias[0], bias[0].shape).relu()
            memory = torch.gru_cell(x[None], memory[None], w3.T, w4.T, b3[0], b4[0])[0]
        return memory @ w5 + b5[0], memory

    def value_at(self, data: Steps, t: int, w: int, i: int, after: bool = False) -> Tensor:
        return self.output("critic", data, t, w, i, after)[0][0]

    def log_prob_and_entropy_at(self, data: Steps, t: int, w: int, i: int) -> tuple[Tensor, Tensor]:
        return self.gaussian(self.output("actor", data, t, w, i)[0], data.action[0, t, w, i])

    def rows(self, order: Tensor) -> list[tuple[int, int]]:
        return [(t, w) for w in order.tolist() for t in range(T)]

    def learn(self, batch: Batch, noise: Tensor) -> None:
        """Update from a batch, and remember what the critics saw in it."""
        data, self.actors = batch.data, batch.memory[0]
        last = torch.zeros_like(self.critics)
        for w in range(W):
            for i in range(SPEC.agents):
                if not data.ended[0, -1, w].all():
                    last[w, i] = self.output("critic", data, T - 1, w, i)[1].detach()
        self.update(data, noise)
        self.critics = last


class SlowMoves(SlowMemory):
    """The learner written out, for moves among those that the first features mark."""

    def log_prob_and_entropy_at(self, data: Steps, t: int, w: int, i: int) -> tuple[Tensor, Tensor]:
        legal = [e for e in range(E) if data.obs[0, t, w, i, e]]
        return judge_move(self.output("actor", data, t, w, i)[0], legal, int(data.action[0, t, w, i]))


def test_moves_equal_those_written_out() -> None:
    rng = Streams((0,), dtype=torch.float64)
    ones = torch.ones(1, MOVES.agents, MOVES.obs, dtype=torch.float64)
    learner = PPO(OWN, MOVES, Scale(center=0.1 * ones, spread=ones), rng, RT, W)
    slow = SlowMoves(learner)
    for batch, noise in batches(rng, learner):
        data = moves(rng)
        assert not data.obs.legal.all()
        slow.learn(replace(batch, data=plain(data)), noise)
        learner.update(replace(batch, data=data), noise)
    assert_same(learner, slow)


def batches(rng: Streams, learner: PPO, count: int = 2) -> list[tuple[Batch, Tensor]]:
    """Return random steps with a random memory before the first, and the order of worlds."""
    result = []
    for _ in range(count):
        memory = torch.tanh(rng.normal("memory", W, SPEC.agents, M))
        batch = Batch(steps(rng), torch.arange(T * W).expand(len(rng.seeds), -1), memory=memory)
        result.append((batch, learner.update_noise(rng, T * W)))
    return result


def assert_same(learner: PPO, slow: SlowMemory) -> None:
    assert_equal(learner, slow)
    team = learner.team
    own = learner.critic_memory[0][:, list(team.critics) if team.central else list(range(SPEC.agents))]
    torch.testing.assert_close(own, slow.critics, rtol=1e-9, atol=1e-12)


def train_both(config: MAPPOConfig = OWN) -> tuple[PPO, SlowMemory]:
    learner, rng = build(config)
    slow = SlowMemory(learner)
    ends = 0
    for batch, noise in batches(rng, learner):
        assert noise.shape == (1, config.epochs, W)
        ends += int(batch.data.ended[:, :-1].all(-1).sum()) * int(batch.data.ended[:, -1].all(-1).sum())
        slow.learn(batch, noise)
        learner.update(batch, noise)
    assert ends > 0
    return learner, slow


@pytest.mark.parametrize("name", CONFIGS)
def test_two_updates_equal_those_written_out(name: str) -> None:
    learner, slow = train_both(CONFIGS[name])
    assert_same(learner, slow)
    assert (slow.undone > 0) is (name == "stops")
    assert learner.critic_memory.abs().max() > 0.1


def test_a_critic_of_a_group_has_one_memory() -> None:
    learner, _ = build(CONFIGS["shared critic"])
    assert learner.critic_memory.shape == (1, W, 2, M)
    assert build()[0].critic_memory.shape == (1, W, 3, M)


def never_fresh(data: Steps, memory: Memory) -> Sequences:
    """The mutant: memory goes on past the end of an episode."""
    steps = sequences_of(data, memory)
    return replace(steps, fresh=torch.zeros_like(steps.fresh))


def fresh_too_early(data: Steps, memory: Memory) -> Sequences:
    """The mutant: memory is lost in the last step of an episode, not after it."""
    return replace(sequences_of(data, memory), fresh=data.ended.all(-1))


def fresh_for_one_agent(data: Steps, memory: Memory) -> Sequences:
    """The mutant: a world counts as replaced where the task of one agent ended."""
    return sequences_of(replace(data, ended=data.ended.any(-1, keepdim=True).expand_as(data.ended)), memory)


def of_another_world(data: Steps, memory: Memory) -> Sequences:
    return sequences_of(data, tree_map(lambda leaf: leaf.roll(1, 1), memory))


def from_zero(data: Steps, memory: Memory) -> Sequences:
    return sequences_of(data, tree_map(torch.zeros_like, memory))


@pytest.mark.parametrize("mutant", [never_fresh, fresh_too_early, fresh_for_one_agent, of_another_world, from_zero])
def test_another_memory_is_caught(mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "sequences_of", mutant)
    with pytest.raises(AssertionError):
        assert_same(*train_both())


VALUES = RecurrentTeam.values


def before_the_step(team: RecurrentTeam, theta: Tensor, seen: Sequences, *rest: Any) -> tuple[Tensor, ...]:
    """The mutant: the value after a step has the memory before it."""
    next_obs, ended = rest
    value, _, last = VALUES(team, theta, seen, next_obs, ended)
    later = []
    for t in range(T):  # the observation after the step takes the place of the one before it
        obs = torch.cat((seen.obs[:, :, :t], next_obs[:, :, t : t + 1], seen.obs[:, :, t + 1 :]), 2)
        later.append(team.value(theta, replace(seen, obs=obs)).unflatten(1, (W, T))[:, :, t])
    return value, torch.stack(later, 2).flatten(1, 2), last


def as_fresh(team: RecurrentTeam, theta: Tensor, seen: Sequences, *rest: Any) -> tuple[Tensor, ...]:
    """The mutant: the value after the end of an episode has an empty memory."""
    next_obs, ended = rest
    value, later, last = VALUES(team, theta, seen, next_obs, ended)
    over = ended.all(-1)
    alone = replace(seen, obs=next_obs, fresh=torch.ones_like(seen.fresh))
    return value, torch.where(over.flatten(1)[..., None], team.value(theta, alone), later), last


def keep_the_end(team: RecurrentTeam, theta: Tensor, seen: Sequences, *rest: Any) -> tuple[Tensor, ...]:
    """The mutant: critics remember an episode that ended with the batch."""
    next_obs, ended = rest
    return VALUES(team, theta, seen, next_obs, torch.zeros_like(ended))


@pytest.mark.parametrize("mutant", [before_the_step, as_fresh, keep_the_end])
def test_a_value_with_another_memory_is_caught(mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentTeam, "values", mutant)
    with pytest.raises(AssertionError):
        assert_same(*train_both())


def test_gradients_that_end_at_each_step_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sequences.recur

    def recur(gates: Tensor, weight: Tensor, bias: Tensor, memory: Tensor, fresh: Tensor | None) -> Tensor:
        states = []
        for step in range(gates.shape[1]):
            first = None if fresh is None else fresh[:, step : step + 1]
            memory = whole(gates[:, step : step + 1], weight, bias, memory.detach(), first)[:, 0]
            states.append(memory)
        return torch.stack(states, 1)

    monkeypatch.setattr(sequences, "recur", recur)
    with pytest.raises(AssertionError):
        assert_same(*train_both())


def test_runs_together_equal_runs_apart() -> None:
    together, rng = build(seeds=(5, 8))
    both = batches(rng, together)
    for batch, noise in both:
        together.update(batch, noise)
    for run, seed in enumerate((5, 8)):
        alone, _ = build(seeds=(seed,))
        for batch, noise in both:
            data = tree_map(lambda leaf, r=run: leaf[r : r + 1], batch.data)
            own = Batch(data, batch.index[:1], memory=batch.memory[run : run + 1])
            alone.update(own, noise[run : run + 1])
        for name, tensor in alone.state_dict().items():
            if tensor.dim():
                mine = together.state_dict()[name].unflatten(0, (2, -1))[run]
                torch.testing.assert_close(mine, tensor, rtol=1e-8, atol=1e-11)


def collected(batch_count: int, seeds: tuple[int, ...] = (0, 3)) -> tuple[PPO, FixedLengthCollector, list[Batch]]:
    rng, env = Streams(seeds), Walk()
    blank = torch.zeros(len(seeds), 2, 1)
    learner = PPO(replace(OWN, hidden=16), env.spec, Scale(center=blank, spread=blank + 1), rng, RT, 4)
    source = FixedLengthCollector(env, learner.policy(env.spec, explore=True), FixedLengthConfig(4, 7, 4), rng, RT)
    return learner, source, [_next(source) for _ in range(batch_count)]


def _next(source: FixedLengthCollector) -> Batch:
    batch = source.next()
    source.after_cycle()
    return batch


def test_the_actions_of_a_batch_follow_from_its_memory() -> None:
    """What the learner recomputes from the memory before a batch is what the policy did, world by world."""
    learner, _, three = collected(3)
    noise, team = Streams((0, 3)), learner.team
    for number, batch in enumerate(three):
        drawn = torch.stack([acting_noise(noise, "act", 4, Walk.spec) for _ in range(7)], 2)
        data = tree_map(lambda leaf: leaf.transpose(1, 2), batch.data)
        assert data.ended.all(-1)[:, :, :-1].any()

        def actions(memory: Tensor, data: Any = data, drawn: Tensor = drawn) -> Tensor:
            seen = sequences_of(data, Memory(actor=memory, critic=memory))
            out = team.act(learner.actor.parameter.detach(), seen)
            return sample_actions(OWN, out, data.obs.flatten(1, 2), drawn.flatten(1, 2)).view_as(data.action)

        torch.testing.assert_close(actions(batch.memory), data.action, rtol=1e-5, atol=1e-6)
        assert batch.memory.any() == (number > 0)
        if number:
            assert (actions(batch.memory.roll(1, 1)) - data.action).abs().max() > 1e-4
            assert (actions(torch.zeros_like(batch.memory)) - data.action).abs().max() > 1e-4


def test_a_source_goes_on_from_its_state_bit_for_bit() -> None:
    _, one, _ = collected(2)
    _, other, _ = collected(0, (7, 8))
    other.policy, other._act = one.policy, one._act
    state = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    assert state["memory"].abs().max() > 0
    other.rng.load_state_dict(one.rng.state_dict())
    other.load_state_dict(state)
    a, b = _next(one), _next(other)
    assert torch.equal(a.memory, b.memory)
    assert torch.equal(a.data.action, b.data.action)
    assert "memory" in other.tensors_to_check()


def run_of(folder: Path | None = None, **changes: Any) -> Run:
    values = {**sizes("spread", "mappo"), "learner": "mappo", "memory": 4, "rollout_steps": 4, "horizon": 6, "runs": 2}
    return Run(configure("spread", values, {"updates": 5, "checkpoint_every": 3}, changes), folder)


def stop_at(run: Run, number: int) -> Run:
    for progress in run.train():
        if progress.number == number:
            run.stop()
    return run


def test_a_run_that_is_interrupted_amid_episodes_goes_on_exactly(tmp_path: Path) -> None:
    whole = stop_at(run_of(tmp_path / "whole"), -1)
    assert "memory" in whole.source.state_dict()
    assert whole.learner.state_dict()["critic_memory"].abs().max() > 0
    stop_at(run_of(tmp_path / "halves"), 2)  # after 8 steps of episodes of 6
    assert stop_at(Run.resume(tmp_path / "halves"), -1).digest == whole.digest
    stop_at(run_of(tmp_path / "apart"), 2)
    for part in ("nothing", "source", "learner"):  # the mutants: a memory that is not restored
        run = Run.resume(tmp_path / "apart")
        if part == "source":
            run.source.memory.zero_()
        elif part == "learner":
            run.learner.critic_memory.zero_()
        run.folder = None  # the next one starts where this one did
        assert (stop_at(run, -1).digest == whole.digest) is (part == "nothing")


def recall(memory: int, updates: int) -> Tensor:
    """Train on the task that needs a memory; return the mean return of mean actions for each seed."""
    env, rng = Recall(), Streams((0, 1))
    config = MAPPOConfig(hidden=32, memory=memory, lr=3e-3, critic_lr=3e-3, epochs=4, minibatches=2, entropy=0.0)
    learner = PPO(config, env.spec, survey(env, rng), rng, RT, 64)
    source = FixedLengthCollector(env, learner.policy(env.spec, explore=True), FixedLengthConfig(64, 10, 3), rng, RT)
    for _ in training(source, learner, rng, RT, 0, updates):
        source.after_cycle()
    return episodes(env, learner.policy(env.spec), rng, 200, mean_action=True)["return"].mean(1)
