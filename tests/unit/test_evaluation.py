"""Scores on an environment so small that every figure of every episode is known, and intervals checked by hand."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Metric, tensors
from uavlab.evaluation import CHECK_STEPS, COMMON, Planner, episodes, interval, summary
from uavlab_lab.lessons.mapping import curves

SEEDS, COUNT = (3, 8), 40


@tensors
class Life:
    """A world whose task ends at step ``end``."""

    end: Tensor
    step: Tensor


@dataclass(frozen=True)
class Lives:
    """Lives of 1 to 6 steps, cut at the horizon; in step n the two agents earn n and 3 n."""

    horizon: int = 4

    metrics = (
        Metric("final", "last"),
        Metric("mean_step", "mean"),
        Metric("total", "sum"),
        Metric("push", "sum"),
    )

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(2, 1, 1, self.horizon, 1.0, 1, 0, (0, 0))

    def initial(self, noise: Tensor) -> Life:
        return Life(end=1 + (6 * noise[:, 0]).long(), step=torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: Life, action: Tensor, noise: Tensor) -> Life:
        return Life(end=state.end, step=state.step + 1)

    def observe(self, state: Life) -> Tensor:
        return state.step.to(torch.float64).view(-1, 1, 1).expand(-1, 2, 1).clone()

    def reward(self, state: Life, action: Tensor, after: Life) -> Tensor:
        return after.step[:, None] * torch.tensor([1.0, 3.0], dtype=torch.float64)

    def terminated(self, state: Life) -> Tensor:
        return (state.step >= state.end)[:, None].expand(-1, 2)

    def measure(self, state: Life, action: Tensor, after: Life) -> dict[str, Tensor]:
        step = after.step.double()
        return {"final": step, "mean_step": step, "total": step, "push": action[:, 0, 0]}


def push(obs: Tensor, noise: Tensor | None) -> Tensor:
    """Act by the noise itself, or by 1 for the mode."""
    return torch.ones_like(obs) if noise is None else noise + 0 * obs


def streams(seeds: tuple[int, ...] = SEEDS) -> Streams:
    return Streams(seeds, dtype=torch.float64)


def ends(stream: str = "evaluate") -> Tensor:
    return 1 + (6 * streams().uniform(f"{stream}.start", COUNT, 1)[..., 0]).long()


@pytest.mark.parametrize("horizon", [1, 4, 100])
def test_every_figure_of_every_episode(horizon: int) -> None:
    figures = episodes(Lives(horizon), push, streams(), COUNT)
    n = ends().clamp(max=horizon).double()  # steps flown
    assert n.unique().tolist() == list(range(1, min(horizon, 6) + 1))
    expected = {
        "final": n,
        "mean_step": (n + 1) / 2,
        "total": n * (n + 1) / 2,
        "flight_time": n,
        "timeout": (ends() > horizon).double(),
        "return": n * (n + 1),  # the agents' mean in step k is 2 k
    }
    for name, value in expected.items():
        torch.testing.assert_close(figures[name], value, msg=name)
    assert set(figures) == {*expected, "push"}


def test_actions_come_from_the_stream_until_the_end() -> None:
    figures = episodes(Lives(), push, streams(), COUNT)
    rng, total = streams(), torch.zeros(len(SEEDS), COUNT, dtype=torch.float64)
    for step in range(4):
        total += rng.normal("evaluate.act", COUNT, 2, 1)[:, :, 0, 0] * (step < ends())
    torch.testing.assert_close(figures["push"], total)


def test_mean_action_draws_none() -> None:
    figures = episodes(Lives(), push, streams(), COUNT, mean_action=True)
    assert torch.equal(figures["push"], figures["flight_time"])


def test_an_end_at_the_horizon_is_no_timeout() -> None:
    figures = episodes(Lives(horizon=4), push, streams(), COUNT)
    at_the_limit = ends() == 4
    assert at_the_limit.any()
    assert figures["timeout"][at_the_limit].max() == 0


def test_flights_stop_soon_after_the_last_end() -> None:
    steps = []

    class Counted(Lives):
        def transition(self, state: Life, action: Tensor, noise: Tensor) -> Life:
            steps.append(1)
            return super().transition(state, action, noise)

    episodes(Counted(horizon=1000), push, streams(), COUNT)
    assert len(steps) == CHECK_STEPS


def test_same_seed_same_figures_other_stream_others() -> None:
    first, second = (episodes(Lives(), push, streams(), COUNT) for _ in range(2))
    assert all(torch.equal(first[k], second[k]) for k in first)
    other = episodes(Lives(), push, streams(), COUNT, stream="choose")
    torch.testing.assert_close(other["flight_time"], ends("choose").clamp(max=4).double())
    assert not torch.equal(other["flight_time"], first["flight_time"])


def test_runs_together_equal_runs_alone() -> None:
    together = episodes(Lives(), push, streams(), COUNT)
    for r, seed in enumerate(SEEDS):
        alone = episodes(Lives(), push, streams((seed,)), COUNT)
        assert all(torch.equal(together[k][r : r + 1], alone[k]) for k in together)


def test_no_gradients_are_kept() -> None:
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    figures = episodes(Lives(), lambda obs, noise: weight * push(obs, noise), streams(), COUNT)
    assert not any(value.requires_grad for value in figures.values())


# ---- intervals ----


def test_interval_of_a_constant_is_the_constant() -> None:
    assert vars(interval(torch.full((3, 7), 2.5))) == {"mean": 2.5, "low": 2.5, "high": 2.5}


def test_interval_of_two_episodes() -> None:
    # Two draws from {0, 1} have mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4: both 2.5 % tails end at the extremes.
    assert vars(interval(torch.tensor([[0.0, 1.0]]))) == {"mean": 0.5, "low": 0.0, "high": 1.0}


def test_interval_of_many_episodes_is_the_textbook_one() -> None:
    # 400 coins, half of them 1: standard error sqrt(1/4 / 400) = 0.025, so 0.5 -+ 1.96 x 0.025 = 0.451 ... 0.549.
    # A 2.5 % quantile of 2000 draws has standard error 0.025 x sqrt(0.025 x 0.975 / 2000) / 0.0584 = 0.0015.
    got = interval((torch.arange(400) % 2).double()[None])
    assert got.mean == 0.5
    assert got.low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert got.high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)


def test_runs_are_the_unit_of_several() -> None:
    # Run means 0, 1/2 and 1: t of two degrees of freedom 4.3027, so 0.5 -+ 4.3027 x 0.5 / sqrt(3).
    values = torch.tensor([[0.0], [0.5], [1.0]]).expand(3, 50)
    got = interval(values)
    assert (got.mean, got.low, got.high) == pytest.approx((0.5, 0.5 - 1.24207, 0.5 + 1.24207), abs=1e-5)
    pooled = interval(values.reshape(1, 150))  # the broken variant: episodes of a run are not independent
    assert pooled.high - pooled.low < 0.15


def test_interval_is_the_same_again() -> None:
    values = torch.rand(1, 20, generator=torch.Generator().manual_seed(0))
    assert interval(values) == interval(values)
    assert interval(values).mean == pytest.approx(values.mean().item())


def test_summary_keeps_the_order_and_every_figure() -> None:
    env = Lives()
    figures = episodes(env, push, streams(), COUNT)
    table = summary(figures, env.metrics)
    assert list(table) == [m.name for m in (*env.metrics, *COMMON)]
    assert table["final"] == vars(interval(figures["final"])) | {"each": figures["final"].mean(1).tolist()}
    assert "each" not in summary({k: v[:1] for k, v in figures.items()}, env.metrics)["final"]
    assert all(math.isfinite(row["low"]) and row["low"] <= row["mean"] <= row["high"] for row in table.values())


def failures(count: int, total: int) -> torch.Tensor:
    """Return the outcomes of one run: 1, but for ``count`` of them."""
    return (torch.arange(total) >= count).double()[None]


@pytest.mark.parametrize(
    ("failed", "total", "low", "high"), [(1, 200, 0.9725, 0.9999), (1, 50, 0.8935, 0.9995), (0, 200, 0.9817, 1.0)]
)
def test_shares_of_one_run_are_exact(failed: int, total: int, low: float, high: float) -> None:
    values = failures(failed, total)
    got = interval(values, outcomes=True)
    assert (got.low, got.high) == pytest.approx((low, high), abs=6e-5)
    assert interval(values).low > got.low + 0.004  # the broken variant: a bootstrap, narrower towards 0
    assert interval(1 - values, outcomes=True).high == pytest.approx(1 - low, abs=6e-5)


def test_outcomes_of_runs_that_agree_do_not_claim_certainty() -> None:
    """Two runs with equal shares: no less than the exact interval of all their episodes."""
    got = interval(torch.zeros(2, 100), outcomes=True)
    assert vars(got) == pytest.approx({"mean": 0.0, "low": 0.0, "high": 0.018275}, abs=1e-5)
    apart = interval(torch.cat([failures(1, 100), failures(5, 100), failures(0, 100)]), outcomes=True)
    assert apart.low == pytest.approx(0.98 - 4.30265 * math.sqrt(0.0007 / 3), abs=1e-5)
    assert apart.high == 1.0  # no share is greater


def test_intervals_end_at_the_bounds_of_a_metric_and_at_no_others() -> None:
    """Shares of three runs, 0.99 +- 4.303 x 0.01 / sqrt(3); what has no bounds keeps Student's ends."""
    runs = torch.tensor([[0.98], [0.99], [1.0]], dtype=torch.float64)
    figures = dict.fromkeys(("share", "cost", "free", "flight_time", "timeout", "return"), runs)
    metrics = (Metric("share", "mean", bounds=(0, 1)), Metric("cost", "sum", bounds=(0.98, math.inf)))
    table = summary(figures, (*metrics, Metric("free", "mean")))
    reach = 4.30265 * 0.01 / math.sqrt(3)
    ends = {name: (row["low"], row["high"]) for name, row in table.items()}
    assert ends["free"] == ends["return"] == pytest.approx((0.99 - reach, 0.99 + reach), abs=1e-5)
    assert ends["share"] == (ends["free"][0], 1.0)
    assert ends["cost"] == (0.98, ends["free"][1])


def test_a_number_that_is_always_0_is_no_share() -> None:
    """A metric of the last step is an outcome only if it is declared, and if its values are."""
    never = {"lag": torch.zeros(1, 50), "flight_time": torch.ones(1, 50), "return": torch.ones(1, 50)}
    figures = {**never, "hit": torch.zeros(1, 50), "part": torch.full((1, 50), 0.5), "timeout": torch.zeros(1, 50)}
    table = summary(figures, (Metric("lag", "last"), Metric("hit", "outcome"), Metric("part", "outcome")))
    assert table["lag"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert table["hit"]["high"] == table["timeout"]["high"] == pytest.approx(1 - 0.025 ** (1 / 50), abs=1e-6)
    assert table["part"] == {"mean": 0.5, "low": 0.5, "high": 0.5}


def test_curves_end_where_episodes_do() -> None:
    """A metric of the last step is the curve's last value, and an end stays as it was."""
    history, whole = curves(Lives(), push, streams(), COUNT), episodes(Lives(), push, streams(), COUNT)
    assert set(history) == {"final", "mean_step", "total", "push"}
    assert history["final"].shape == (len(SEEDS), COUNT, 4)
    assert torch.equal(history["final"][..., -1], whole["final"])
    steps = torch.arange(1, 5, dtype=torch.float64)
    assert torch.equal(history["final"], steps.minimum(ends()[..., None].double()))


def test_a_plan_sees_the_state_and_its_own_noise() -> None:
    seen = []

    def plan(env: Lives, state: Life, noise: Tensor) -> Tensor:
        seen.append((state.step, noise))
        return noise[..., None]

    figures = episodes(Lives(), Planner(plan), streams(), COUNT)
    assert [step.unique().tolist() for step, _ in seen] == [[0], [1], [2], [3]]
    rng, total = streams(), torch.zeros(len(SEEDS), COUNT, dtype=torch.float64)
    for step in range(4):
        total += rng.uniform("evaluate.act", COUNT, 2)[..., 0] * (step < ends())
    torch.testing.assert_close(figures["push"], total)


@dataclass(frozen=True)
class CutLives(Lives):
    """Lives that the environment cuts after three steps, before the horizon."""

    horizon: int = 6

    def truncated(self, state: Life) -> Tensor:
        return state.step >= 3


def test_episodes_that_the_environment_cuts_end_there() -> None:
    cut = episodes(CutLives(), push, streams(), COUNT)
    plain = episodes(Lives(horizon=3), push, streams(), COUNT)
    assert cut.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(cut[name], value), name
    assert cut["flight_time"].max() == 3
