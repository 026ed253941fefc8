"""Rows of one matrix are clipped and stepped like separate networks with torch's own Adam, for any split of batches.

The step that can be compiled equals the plain one.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.devices import DEVICES, capture
from tests.support.fake_device import fake_device
from tests.support.lockstep import ThreadRank, together
from tests.support.plain_collector import collector
from uavlab.collectors.off_policy import ReplayConfig
from uavlab.collectors.world_source import survey
from uavlab.core.rng import Streams
from uavlab.core.types import Batch
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac.masac import MASAC, MASACConfig
from uavlab.profiling.batch_size import Budget
from uavlab.runtime import grad_step
from uavlab.runtime.grad_step import ADAM_EPS, MOMENTS, SCRATCH, CompiledStep, GradientStep, Rows, split_rows
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles

LR = 0.1
GOAL = torch.tensor([[1.0, -2.0, 0.5], [30.0, 40.0, 0.0]])
PRECISE_GOAL = GOAL.double()


def toward_goal(rows: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared distance of each row to its goal: the gradient is rows - goal."""
    each = (rows - goal).square().sum(1) / 2
    return each.sum(), {"loss": each.detach()}


def build(start: Tensor, lr: float, clip: float | None) -> GradientStep:
    return Runtime(requested=Toggles(adam="fused")).grad(start, lr, clip)


def alone(start: Tensor, goal: Tensor, clip: float | None, steps: int) -> Tensor:
    """Step with one parameter and one torch.optim.Adam for each row."""
    rows = []
    for row, target in zip(start, goal, strict=True):
        parameter = row.clone().requires_grad_()
        adam = torch.optim.Adam([parameter], lr=LR, eps=ADAM_EPS)
        for _ in range(steps):
            adam.zero_grad()
            (parameter - target).square().sum().div(2).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([parameter], clip)
            adam.step()
        rows.append(parameter.detach())
    return torch.stack(rows)


@pytest.mark.parametrize("clip", [None, 1.0, 20.0])
def test_rows_step_like_adam_alone(clip: float | None) -> None:
    step = build(torch.zeros(2, 3), LR, clip)
    for _ in range(20):
        step(toward_goal, step.parameter, GOAL)
    torch.testing.assert_close(step.parameter.detach(), alone(torch.zeros(2, 3), GOAL, clip, 20))


def test_each_row_is_clipped_by_its_own_norm() -> None:
    step = build(torch.zeros(2, 3), LR, 10.0)
    metrics, norm = step(toward_goal, step.parameter, GOAL)
    torch.testing.assert_close(norm, torch.tensor([5.25**0.5, 50.0]))  # 1 + 4 + 0.25; 30, 40: before clipping
    assert step.parameter.grad is not None
    torch.testing.assert_close(step.parameter.grad, torch.tensor([[-1.0, 2.0, -0.5], [-6.0, -8.0, 0.0]]))
    torch.testing.assert_close(metrics["loss"], torch.tensor([5.25 / 2, 1250.0]))


def test_clipping_by_the_norm_of_all_rows_would_be_seen() -> None:
    """The mutant: one norm for the whole matrix shrinks the small row as well, which Adam's eps then shows."""
    tiny_goal = torch.tensor([[1e-5, 0.0, 0.0], [30.0, 40.0, 0.0]])

    def first_row(clip_all: bool) -> float:
        step = build(torch.zeros(2, 3), LR, None if clip_all else 1.0)
        loss: Callable = toward_goal
        if clip_all:

            def loss(rows: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                return toward_goal(rows, goal)[0] / 50, {}

        step(loss, step.parameter, tiny_goal)
        return step.parameter[0, 0].item()

    # Adam's first step is lr g / (|g| + eps): a half of lr at g = eps = 1e-5, a 51st at g = 1e-5 / 50
    assert first_row(clip_all=False) == pytest.approx(LR / 2, rel=1e-3)
    assert first_row(clip_all=True) == pytest.approx(LR / 51, rel=1e-3)


def follows(rates: list[float], adam: str, functional: bool = False, late: int = 0) -> bool:
    """Return whether steps at shares of the learning rate are those of an Adam whose own rate is changed."""
    compiled = {"update": "batched", "compile": "default"} if functional else {}
    toggles = Toggles(adam=adam, **compiled)  # type: ignore[arg-type]
    step = Runtime(requested=toggles).grad(torch.zeros(2, 3, dtype=torch.float64), LR, 20.0)
    step.rate = torch.ones((), dtype=torch.float64)
    parameter = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    plain = torch.optim.Adam([parameter], lr=LR, eps=ADAM_EPS)
    for number, rate in enumerate(rates):
        step.rate.fill_(rates[max(0, number - late)])
        (step.functional_step if functional else step)(toward_goal, step.parameter, PRECISE_GOAL)  # type: ignore[attr-defined]
        plain.param_groups[0]["lr"] = LR * rate
        slope = parameter.detach() - PRECISE_GOAL
        parameter.grad = slope * (20 / slope.norm(dim=1)).clamp(max=1)[:, None]
        plain.step()
    return torch.allclose(step.parameter, parameter, rtol=1e-6, atol=0)


@pytest.mark.parametrize("adam", ["single", "foreach", "fused"])
def test_a_rate_is_a_share_of_the_learning_rate(adam: str) -> None:
    rates = [1.0, 0.7, 0.5, 0.0, 0.2]
    assert follows(rates, adam)
    assert follows(rates, adam, functional=True)
    assert not follows(rates, adam, late=1)  # the mutant: a step late


def ranks_step(goals: Tensor, clip: float | None, deaf: frozenset[str] = frozenset()) -> list[tuple[Tensor, Tensor]]:
    """Return parameters and gradient norm after a step of two ranks, each toward a goal of its own."""

    def work(rank: ThreadRank) -> tuple[Tensor, Tensor]:
        step = Runtime(ranks=rank).grad(torch.zeros(1, 3), LR, clip)
        _, norm = step(toward_goal, step.parameter, goals[rank.rank])
        return step.parameter.detach(), norm

    return together(work, deaf=deaf)


def test_ranks_average_gradients_before_they_clip() -> None:
    goals = torch.tensor([[[6.0, 0.0, 0.0]], [[0.0, 8.0, 2e-5]]])  # gradients -6 0 0 and 0 -8 -2e-5: mean -3 -4 -1e-5
    (first, norm), (second, other) = ranks_step(goals, 1.0)
    assert (norm.tolist(), other.tolist()) == ([5.0], [5.0])
    torch.testing.assert_close(first, alone(torch.zeros(1, 3), goals.mean(0), 1.0, 1))
    assert torch.equal(first, second)
    small = first[0, 2].item()  # Adam's first step is lr g / (|g| + eps), and clipping divides g = 1e-5 by 5
    assert small == pytest.approx(LR / 6, rel=1e-3)
    (first, norm), (second, _) = ranks_step(goals, 1.0, frozenset({"__call__"}))  # the mutant
    assert norm.item() == pytest.approx(6.0)
    assert not torch.equal(first, second)


def test_ranks_skip_a_step_that_overflows_on_one_of_them() -> None:
    def work(rank: ThreadRank) -> tuple[Tensor, float, int]:
        rt = Runtime(requested=Toggles(precision="fp16"), ranks=rank)
        step = rt.grad(torch.zeros(1, 3), LR, 1.0)
        for goal in (1.0, torch.inf if rank.rank else 1.0, 1.0):
            rt.update(lambda goal=goal: step(toward_goal, step.parameter, torch.full((1, 3), goal)), "step")()
        assert rt.scaler is not None
        return step.parameter.detach(), rt.scaler.scale.item(), int(rt.scaler.skipped)

    (first, scale, skipped), (second, other, _) = together(work)
    assert torch.equal(first, second)
    assert first.isfinite().all()
    assert (scale, skipped) == (other, 1)
    assert scale == 2.0**10 / 2


def test_the_given_matrix_is_copied() -> None:
    given = torch.zeros(2, 3)
    step = build(given, LR, None)
    step(toward_goal, step.parameter, GOAL)
    assert not given.any()
    assert step.parameter.any()


def test_inputs_receive_no_gradient() -> None:
    goal = GOAL.clone().requires_grad_()
    step = build(torch.zeros(2, 3), LR, 1.0)
    step(toward_goal, step.parameter, goal)
    assert goal.grad is None


@pytest.mark.parametrize("before", [0, 3])
def test_a_restored_state_goes_on_bit_for_bit(before: int) -> None:
    whole, first = (build(torch.zeros(2, 3), LR, 1.0) for _ in range(2))
    for step in (whole, first):
        for _ in range(before):
            step(toward_goal, step.parameter, GOAL)
    state = {name: value.clone() for name, value in first.state_dict().items()}
    second = build(torch.ones(2, 3), LR, 1.0)
    second(toward_goal, second.parameter, -GOAL)  # moments that must be forgotten
    second.load_state_dict(state)
    for _ in range(3):
        whole(toward_goal, whole.parameter, GOAL)
        second(toward_goal, second.parameter, GOAL)
    assert set(second.state_dict()) == {"parameter", "step", "exp_avg", "exp_avg_sq"}
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert all(torch.equal(value, first.state_dict()[name]) for name, value in state.items())  # nothing is shared


def apart(point: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Half the mean squared distance to the rows of x: the gradient is point - mean."""
    each = (point - x).square().sum(1) / 2
    return each.mean(), {"loss": each.detach().mean(), "each": Rows(each.detach(), 0)}


def one_step(pieces: int) -> tuple[GradientStep, dict[str, Tensor]]:
    step = GradientStep([[torch.zeros(1).requires_grad_()]], LR, None, False, Toggles(micro_batches=pieces))
    metrics, _ = step(apart, step.parameter, Rows(torch.tensor([[1.0], [2.0], [6.0]]), 0))
    return step, metrics


@pytest.mark.parametrize("pieces", [1, 2, 3, 100])
def test_gradients_of_uneven_pieces_add_up_to_that_of_the_batch(pieces: int) -> None:
    """In two pieces, 1 and (2, 6): 1/3 of -1 and 2/3 of -4 are -3."""
    step, metrics = one_step(pieces)
    assert step.parameter.grad is not None
    assert step.parameter.grad.item() == pytest.approx(-3)
    assert metrics["loss"].item() == pytest.approx((1 + 4 + 36) / 6)
    assert metrics["each"].tolist() == [0.5, 2, 18]


def test_pieces_that_count_alike_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def alike(inputs: Any, pieces: int) -> Iterator[tuple[float, list[Any]]]:
        return ((1 / pieces, values) for _, values in split_rows(inputs, pieces))

    monkeypatch.setattr(grad_step, "split_rows", alike)
    step, _ = one_step(2)
    assert step.parameter.grad is not None
    assert step.parameter.grad.item() == pytest.approx(-(1 + 4) / 2)


def two_runs(rt: Runtime, dtype: torch.dtype, hidden: int = 16, rows: int = 16) -> tuple[MASAC, Batch, Any]:
    env, rng = LeaderFollower(followers=1), Streams((0, 1), dtype=dtype)
    learner = MASAC(MASACConfig(hidden=hidden, share=False), env.spec, survey(env, rng), rng, rt)
    config = ReplayConfig(worlds=8, batch=rows, capacity=512, learning_starts=64)
    source = collector(env, learner.policy(env.spec), config, rng, rt)
    return learner, source.next(), learner.update_noise(rng, rows)


@pytest.mark.parametrize("pieces", [2, 3, 16])
def test_a_learner_cannot_tell_micro_batches_but_by_rounding(pieces: int, proof: Callable[[str, str], None]) -> None:
    results = []
    for count in (1, pieces):
        rt = Runtime(requested=Toggles(update="batched", micro_batches=count))
        learner, batch, noise = two_runs(rt, torch.float64)
        metrics = learner.update(batch, noise).metrics
        gradients = {name: getattr(learner, name).parameter.grad for name in ("actor", "critic", "temperature")}
        results.append({**metrics, **gradients})
    whole, cut_up = results
    errors = {name: ((cut_up[name] - whole[name]).norm() / whole[name].norm()).item() for name in whole}
    assert max(errors.values()) < 1e-12, errors
    assert max(errors.values()) > 0  # they were cut
    proof("micro-batches", "gradients and metrics of an update in 2, 3, 16 pieces within 1e-12, float64")


def test_gradients_that_are_one_tensor_are_shrunk_once_each() -> None:
    """The gradient of (a + b)^2 is 2 (a + b) = 6 for both, of norm sqrt(72); that of c is one number three times."""
    owners = [
        [torch.ones(1).requires_grad_(), torch.full((1,), 2.0).requires_grad_()],
        [torch.ones(3).requires_grad_()],
    ]
    step = GradientStep(owners, LR, 1.0, False, Toggles(micro_batches=2))
    _, norm = step(
        lambda a, b, c, x: (((a + b) ** 2).sum() + c.sum() + 0 * x.mean(), {}), *step.parameters, Rows(torch.ones(2), 0)
    )
    torch.testing.assert_close(norm, torch.tensor([72**0.5, 3**0.5]))
    assert [p.grad.tolist() for p in step.parameters] == [
        pytest.approx([6 / 72**0.5]),
        pytest.approx([6 / 72**0.5]),
        pytest.approx([3**-0.5] * 3),
    ]


def test_a_piece_is_forgotten_before_the_next() -> None:
    """Four pieces need a quarter of the memory that the whole batch needs, and another for the sum of gradients."""

    def loss(weight: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.tanh(x @ weight).square().mean(), {}

    peaks = []
    for pieces in (1, 4):
        start = torch.zeros(4, 4).requires_grad_()
        step = GradientStep([[start]], LR, None, False, Toggles(adam="fused", micro_batches=pieces))
        with Budget(10**9) as budget:
            step(loss, start, Rows(torch.ones(1000, 4), 0))
        peaks.append(budget.peak)
    assert peaks[1] - 16_000 < 0.3 * (peaks[0] - 16_000)  # but for x itself


@pytest.mark.parametrize("adam", SCRATCH)
@pytest.mark.parametrize("optimizers", ["many", "one"])
def test_moments_are_there_before_the_first_step_and_stay_where_they_are(adam: Any, optimizers: Any) -> None:
    owners = [[torch.ones(2, 3).requires_grad_()], [torch.ones(4).requires_grad_(), torch.ones(5).requires_grad_()]]
    step = GradientStep(owners, LR, 1.0, False, Toggles(adam=adam, optimizers=optimizers))
    state = step.state_dict()
    assert set(state) == {f"{i}.{name}" for i in range(3) for name in ("parameter", *MOMENTS)}
    assert not any(tensor.any() for name, tensor in state.items() if not name.endswith("parameter"))
    places = {name: tensor.data_ptr() for name, tensor in state.items()}
    saved = {name: tensor + 1 for name, tensor in state.items()}
    step(lambda a, b, c: ((a.sum() + b.sum() + c.sum()) ** 2, {}), *step.parameters)
    step.load_state_dict(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in step.state_dict().items())
    assert {name: tensor.data_ptr() for name, tensor in step.state_dict().items()} == places


@pytest.mark.parametrize("adam", SCRATCH)
def test_what_a_step_takes_for_a_moment_was_asked_for_before(adam: Any) -> None:
    start = torch.ones(1000).requires_grad_()
    step = GradientStep([[start]], LR, 1.0, False, Toggles(adam=adam))
    start.grad = torch.ones(1000)
    with Budget(10**9) as budget:
        for each in step.adams:
            each.step()
    assert budget.peak <= step._scratch + 64  # and a few single numbers
    assert step._scratch == 4000 * SCRATCH[adam]
    if adam == "single":
        assert budget.peak > 4000  # less would be refused midway


@pytest.mark.parametrize("adam", SCRATCH)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_plain_adam_is_torchs_own_default(adam: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, a plain reference that steps tensor by tensor would flatter all that is compared with it."""
    names, used = ("single_tensor", "multi_tensor", "fused"), []
    for name in names:
        call = lambda *args, name=name, **kwargs: used.append(name)  # noqa: E731
        monkeypatch.setattr(import_module("torch.optim.adam"), f"_{name}_adam", call)
    with fake_device(strict=False):
        start = torch.zeros(3, device=device).requires_grad_()
        step = GradientStep([[start]], LR, None, False, Toggles(adam=adam))
        step(lambda x: (x.sum(), {}), start)
    own = "multi_tensor" if device == "cuda" else "single_tensor"
    assert used == [{"single": own, "foreach": "multi_tensor", "fused": "fused"}[adam]]


def test_steps_are_counted_from_none_on() -> None:
    step, goal = build(torch.zeros(2, 3), LR, None), torch.ones(2, 3)
    counts = [step.count]  # a learner may take its first step after the first row of metrics
    for _ in range(2):
        step(toward_goal, step.parameter, goal)
        counts.append(step.count)
    assert counts == [0, 1, 2]


def test_on_a_cpu_no_step_is_counted_on_a_gpu() -> None:
    step = GradientStep([[torch.zeros(1)]], LR, None, False, Toggles(graph="update"))
    assert step.adams[0].param_groups[0]["capturable"] is False


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("adam", SCRATCH)
def test_a_step_can_be_captured(adam: Any, device: str) -> None:
    def build_step() -> tuple[GradientStep, Tensor]:
        start = torch.zeros(2, 3, device=device).requires_grad_()
        return GradientStep([[start]], LR, 1.0, True, Toggles(adam=adam, graph="update")), start

    goal = GOAL.to(device)
    (eager, _), (captured, start) = build_step(), build_step()
    replay = capture(lambda: captured(toward_goal, start, goal), device)
    for _ in range(3):
        replay()
    for _ in range(4):
        eager(toward_goal, eager.parameter, goal)
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], tensor)


def by_row(rows: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """The same with a metric of each row."""
    loss, metrics = toward_goal(rows, goal)
    return loss, {**metrics, "apart": Rows((rows - goal).detach(), 1)}


def pair(clip: float | None) -> tuple[GradientStep, CompiledStep]:
    start, toggles = torch.zeros(2, 3, dtype=torch.float64), Toggles(update="batched", adam="fused")
    plain = Runtime(requested=toggles).grad(start, 0.1, clip)
    compiled = Runtime(requested=with_toggles(toggles, {"compile": "default"})).grad(start, 0.1, clip)
    assert isinstance(plain, GradientStep)
    assert isinstance(compiled, CompiledStep)
    return plain, compiled


@pytest.mark.parametrize("clip", [None, 1.0, 20.0])
def test_it_steps_like_the_plain_one(clip: float | None) -> None:
    plain, compiled = pair(clip)
    for _ in range(50):
        one, norm = plain(by_row, plain.parameter, PRECISE_GOAL)
        other, same = compiled.functional_step(by_row, compiled.parameter, Rows(PRECISE_GOAL, 1))
        torch.testing.assert_close(same, norm, rtol=1e-12, atol=0)
        torch.testing.assert_close(other["loss"], one["loss"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other["apart"], one["apart"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(compiled.parameter.detach(), plain.parameter.detach(), rtol=1e-12, atol=1e-12)


def test_the_first_step_is_lr_whatever_the_gradient() -> None:
    """Adam's first step is lr g / (|g| + eps): 0.1 for each of the gradients 1, 2 and 0.5, none where g is 0."""
    _, compiled = pair(None)
    compiled.functional_step(by_row, compiled.parameter, PRECISE_GOAL)
    expected = torch.tensor([[0.1, -0.1, 0.1], [0.1, 0.1, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(compiled.parameter.detach(), expected, rtol=1e-4, atol=0)


def test_outside_a_compiled_function_it_is_the_plain_one_bit_for_bit() -> None:
    plain, compiled = pair(1.0)
    for _ in range(5):
        for step in (plain, compiled):
            step(by_row, step.parameter, PRECISE_GOAL)
    assert torch.equal(compiled.parameter, plain.parameter)


def test_either_goes_on_from_the_others_state() -> None:
    plain, compiled = pair(1.0)
    for _ in range(3):
        compiled.functional_step(by_row, compiled.parameter, PRECISE_GOAL)
    plain.load_state_dict({name: value.clone() for name, value in compiled.state_dict().items()})
    for _ in range(3):
        compiled.functional_step(by_row, compiled.parameter, PRECISE_GOAL)
        plain(by_row, plain.parameter, PRECISE_GOAL)
    compiled.load_state_dict(plain.state_dict())
    compiled.functional_step(by_row, compiled.parameter, PRECISE_GOAL)
    plain(by_row, plain.parameter, PRECISE_GOAL)
    torch.testing.assert_close(compiled.parameter.detach(), plain.parameter.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stale", [False, True])
def test_corrections_follow_steps_made_elsewhere(stale: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = pair(1.0)
    compiled(by_row, compiled.parameter, PRECISE_GOAL)  # not compiled: the plain one works
    for _ in range(4):
        plain(by_row, plain.parameter, PRECISE_GOAL)
    if stale:
        monkeypatch.setattr(compiled, "_factors", compiled.factors.clone)
    compiled.load_state_dict(plain.state_dict())
    compiled.functional_step(by_row, compiled.parameter, PRECISE_GOAL)
    plain(by_row, plain.parameter, PRECISE_GOAL)
    assert torch.allclose(compiled.parameter, plain.parameter, rtol=1e-12, atol=1e-12) is not stale


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("mistake", [False, True])
def test_a_network_whose_steps_are_undone_is_one_that_did_not_take_them(functional: bool, mistake: bool) -> None:
    """Twins are torch's Adam, one for each row: row 1 takes the first step and the last two of eight."""
    start, rt = (
        torch.zeros(2, 3, dtype=torch.float64),
        Runtime(requested=with_toggles(Toggles(update="batched"), {"compile": "default"})),
    )
    step: Any = rt.grad(start, 0.1, None, undo=True)
    twins = [row.clone().requires_grad_() for row in start]
    adams = [torch.optim.Adam([row], 0.1, eps=ADAM_EPS) for row in twins]
    for number in range(8):
        goal = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], dtype=torch.float64) * (1 + number)
        before = step.copy_state()
        (step.functional_step if functional else step)(by_row, step.parameter, goal)
        held = torch.tensor([False, 1 <= number < 6])
        step.undo(held, before)
        if mistake:
            step.load_state_dict({**step.copy_state(), "behind": torch.zeros(2)})
        for row, adam, own, late in zip(twins, adams, goal, held, strict=True):
            if not late:
                row.grad = torch.autograd.grad(by_row(row[None], own[None])[0], row)[0]
                adam.step()
    expected = torch.stack(twins).detach()
    assert torch.allclose(step.parameter, expected, rtol=1e-6, atol=1e-8) is not mistake
    assert step.count == 8
    resumed: Any = rt.grad(start, 0.1, None, undo=True)
    resumed.load_state_dict(step.copy_state())
    for each in (step, resumed):
        (each.functional_step if functional else each)(by_row, each.parameter, start)
    assert torch.equal(step.parameter, resumed.parameter)


@pytest.mark.parametrize("adam", SCRATCH)
def test_where_nothing_is_undone_no_bit_differs(adam: Any) -> None:
    toggles = Toggles(adam=adam, optimizers="one" if adam == "fused" else "many")
    steps = [
        GradientStep([[torch.ones(2, 3).requires_grad_()]], 0.1, 1.0, True, toggles, undo=undo)
        for undo in (False, True)
    ]
    for number in range(20):
        for step in steps:
            before = step.copy_state()
            step(by_row, step.parameter, torch.full((2, 3), number % 7 - 3.0))
            if step.behind is not None:
                step.undo(torch.zeros(2, dtype=torch.bool), before)
    assert torch.equal(steps[0].parameter, steps[1].parameter)


def test_a_forgotten_bias_correction_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = pair(None)
    monkeypatch.setattr(compiled, "factors", torch.tensor([compiled.lr, 1.0], dtype=torch.float64))  # both are 1
    plain(by_row, plain.parameter, PRECISE_GOAL)
    compiled.functional_step(by_row, compiled.parameter, PRECISE_GOAL)
    assert (compiled.parameter - plain.parameter).abs().max() > 0.05


@pytest.mark.parametrize("kind", ["stacked", "owners", "compiled"])
def test_each_run_learns_at_its_own_rate(kind: str) -> None:
    """Two runs of two networks each: a share of a step of Adam is a step at that share of the rate."""
    goal, start = torch.tensor([[1.0, -2.0], [3.0, 4.0], [1.0, -2.0], [3.0, 4.0]]), torch.zeros(4, 2)

    def train(rates: list[float] | None, lr: float) -> Tensor:
        toggles = Toggles(update="batched", compile="default") if kind == "compiled" else Toggles()
        runtime = Runtime(requested=toggles)
        if kind == "owners":
            step = runtime.grad([[row.clone().requires_grad_()] for row in start], lr, None)
        else:
            step = runtime.grad(start, lr, None)
        for _ in range(3):
            if rates is not None:
                step.set_rates(torch.tensor(rates))
            if kind == "owners":
                step(lambda *rows: (toward_goal(torch.stack(rows), goal)[0], {}), *step.parameters)
            elif kind == "compiled":
                step.functional_step(toward_goal, step.parameter, goal)
            else:
                step(toward_goal, step.parameter, goal)
        return torch.stack([each.detach() for each in step.parameters]).view(4, 2)

    mixed = train([1.0, 0.25], LR)
    torch.testing.assert_close(mixed[:2], train(None, LR)[:2])
    torch.testing.assert_close(mixed[2:], train(None, LR / 4)[2:])
    assert not torch.allclose(mixed[:2], mixed[2:])
