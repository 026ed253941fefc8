"""An overflow skips one step of its network and halves the scale once; all but matrix products stay in float32."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.changes import APPLY, BROKEN, Tables, change_errors, gradient_errors
from tests.support.devices import DEVICES
from tests.support.plain_collector import collector
from tests.support.sync_debug import sync_debug
from uavlab.collectors.off_policy import OffPolicyCollector, ReplayConfig
from uavlab.collectors.world_source import survey
from uavlab.core.errors import DivergedError
from uavlab.core.rng import Streams
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.learners.masac import masac
from uavlab.learners.masac.masac import MASAC, MASACConfig
from uavlab.runtime import loss_scaler
from uavlab.runtime.grad_step import ADAM_EPS, SCRATCH, GradientStep
from uavlab.runtime.loss_scaler import CEILING, FLOOR, MAX_OVERFLOWS, PRESETS, Scaler
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

CPU = torch.device("cpu")
ALLOWED = 0.1  # of what float32 changes in a few updates, and of each block of its gradient
GOAL = torch.tensor([[1.0, -2.0, 0.5], [30.0, 40.0, 0.0]])


def toward_goal(rows: Tensor, factor: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradient of row g is factor[g] (row - goal)."""
    each = (rows - GOAL).square().sum(1) / 2 * factor
    return each.sum(), {}


def scales(pattern: str, preset: str = "conservative") -> list[float]:
    """Follow the scale through iterations with (x) and without (.) an overflow."""
    scaler, seen = Scaler(preset, CPU), []
    for overflow in pattern:
        scaler.skip(torch.tensor([1.0, torch.inf if overflow == "x" else 1.0]))
        scaler.update()
        seen.append(scaler.scale.item())
    return seen


def test_the_scale_follows_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "conservative", (1024.0, 2.0, 0.5, 3))
    #                   .     .     x    x    .    .    .    .    .    .     .     x    .    .
    table = [1024, 1024, 512, 256, 256, 256, 512, 512, 512, 1024, 1024, 512, 512, 512]
    assert scales("..xx.......x..") == table


def test_the_presets_are_those_of_the_plan() -> None:
    assert PRESETS["conservative"] == (2**10, 2, 0.5, 2000)
    assert PRESETS["aggressive"] == (2**16, 2, 0.5, 1000)
    assert scales("." * 999 + "." + "." * 1000, "aggressive")[998::1000] == [2**16, 2**17]


def test_between_floor_and_ceiling_it_is_torchs_own_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "conservative", (1024.0, 2.0, 0.5, 4))
    draws = torch.rand(300, generator=torch.Generator().manual_seed(0)) < 0.15
    own = scales("".join("x" if overflow else "." for overflow in draws))
    parameter = torch.ones(1, requires_grad=True)
    theirs = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=4)
    sgd, seen = torch.optim.SGD([parameter], lr=0.1), []
    for overflow in draws:
        parameter.grad = theirs.scale(torch.tensor([torch.inf if overflow else 1.0]))
        theirs.step(sgd)
        theirs.update()
        seen.append(theirs.get_scale())
    assert own == seen
    assert FLOOR < min(own) < 1024 < max(own) < CEILING  # it met neither


def test_the_scale_stays_between_floor_and_ceiling_and_gives_up_at_last(proof: Callable[[str, str], None]) -> None:
    seen = scales("x" * 300, "aggressive")
    assert seen[:17] == [2.0**k for k in range(15, -1, -1)] + [1.0]
    assert set(seen[17:]) == {1.0}
    assert scales("." * 9_000, "aggressive")[-1] == 2**24
    scaler = Scaler("aggressive", CPU)
    for number in range(1, MAX_OVERFLOWS + 1):
        scaler.skip(torch.tensor([torch.nan]))
        scaler.update()
        if number < MAX_OVERFLOWS:
            scaler.check()
    with pytest.raises(DivergedError) as refusal:
        scaler.check()
    assert str(refusal.value) == (
        "training: the loss scale is 1 after 200 overflows in a row; expected gradients that float16 can hold at some "
        "scale. Scale rewards down, or use precision=bf16 or fp32."
    )
    scaler.update()  # one clean iteration
    scaler.check()
    proof("loss scale", "200 overflows in a row: at its floor 1, and training stops")


def test_a_scale_without_floor_would_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaler, "FLOOR", 0.0)
    assert scales("x" * 200)[-1] == 0.0


def steps_of(kind: str, scaler: Scaler | None, clip: float | None = 1.0, adam: Any = "single") -> GradientStep:
    """Two networks of three numbers: rows of a matrix, an owner each, or rows of the tensors of two layers."""
    toggles = Toggles(adam=adam, optimizers="one" if adam == "fused" else "many")
    if kind == "stacked":
        return GradientStep([[torch.zeros(2, 3).requires_grad_()]], 0.1, clip, True, toggles, scaler)
    if kind == "layers":
        layers = [[torch.zeros(2, size).requires_grad_() for size in (1, 2)]]
        return GradientStep(layers, 0.1, clip, True, toggles, scaler)
    owners = [[torch.zeros(3).requires_grad_()] for _ in range(2)]
    return GradientStep(owners, 0.1, clip, False, toggles, scaler)


def call(step: GradientStep, factor: list[float]) -> Tensor:
    def loss(*rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return toward_goal(matrix_of(rows), torch.tensor(factor))

    return step(loss, *step.parameters)[1]


def matrix_of(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(rows)) if rows[0].dim() == 1 else torch.cat(list(rows), 1)


def by_network(step: GradientStep) -> list[list[Tensor]]:
    state = step.state_dict()
    if len(step.owners) == 2:
        return [[tensor.clone() for name, tensor in state.items() if name.startswith(f"{n}.")] for n in range(2)]
    return [[state["parameter"][n].clone(), *(state[k][n].clone() for k in ("exp_avg", "exp_avg_sq"))] for n in (0, 1)]


@pytest.mark.parametrize("adam", SCRATCH)
@pytest.mark.parametrize("kind", ["stacked", "owners"])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_an_overflow_skips_its_own_network_bit_for_bit(kind: str, adam: Any, bad: float) -> None:
    scaler = Scaler("conservative", CPU)
    scaled, plain = steps_of(kind, scaler, adam=adam), steps_of(kind, None, adam=adam)
    for step in (scaled, plain):
        call(step, [1.0, 1.0])
    before = by_network(scaled)
    norms = call(scaled, [1.0, bad])
    call(plain, [1.0, 1.0])
    after, alone = by_network(scaled), by_network(plain)
    assert norms[0] > 0
    assert norms[1] == 0  # what the guard reads stays finite
    assert all(map(torch.equal, after[1], before[1]))
    assert all(map(torch.equal, after[0], alone[0]))  # scaling by powers of two rounds nothing
    assert not torch.equal(after[0][0], before[0][0])
    assert scaler.skipped == 1


@pytest.mark.parametrize("kind", ["stacked", "owners"])
def test_where_all_are_skipped_not_even_steps_are_counted(kind: str) -> None:
    scaler = Scaler("conservative", CPU)
    step = steps_of(kind, scaler)
    before = {name: tensor.clone() for name, tensor in step.state_dict().items()}
    assert call(step, [torch.inf, torch.nan]).tolist() == [0, 0]
    after = step.state_dict()
    counted = ("step", "behind") if kind == "stacked" else ()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items() if name not in counted)
    assert step.count == 0
    assert scaler.skipped == 2


@pytest.mark.parametrize("adam", SCRATCH)
@pytest.mark.parametrize("kind", ["stacked", "owners", "layers"])
def test_a_network_that_skipped_steps_goes_on_as_one_that_had_none(kind: str, adam: Any) -> None:
    """Each network is a twin of its own: torch's Adam, which takes the steps without an overflow alone."""
    pattern = ["..", ".x", ".x", "xx", "x.", "..", ".x", ".."]
    step = steps_of(kind, Scaler("conservative", CPU), adam=adam, clip=1.0)
    twins = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    adams = [torch.optim.Adam([twin], 0.1, eps=ADAM_EPS) for twin in twins]
    for number, marks in enumerate(pattern):
        factor = [1.0 + number, 2.0 + number % 3]
        call(step, [torch.inf if mark == "x" else each for mark, each in zip(marks, factor, strict=True)])
        for n, mark in enumerate(marks):
            if mark == ".":
                gradient = factor[n] * (twins[n].detach() - GOAL[n])
                twins[n].grad = gradient * min(1.0 / (gradient.norm().item() + 1e-6), 1.0)
                adams[n].step()
    for n, twin in enumerate(twins):
        torch.testing.assert_close(matrix_of(step.parameters)[n].detach(), twin.detach(), rtol=2e-6, atol=1e-7)
    assert step.count == 6  # of network 0, which skipped two of eight


@pytest.mark.parametrize("factor", [[1.0, torch.inf], [torch.inf, 1.0]])
def test_the_most_steps_of_any_network_are_counted(factor: list[float]) -> None:
    step = steps_of("stacked", Scaler("conservative", CPU))
    call(step, factor)
    assert step.count == 1


def test_gradients_are_clipped_at_their_true_size() -> None:
    """(30, 40) has norm 50 and becomes (6, 8) at a largest norm of 10; the mutant clips 1024 times that."""
    step = steps_of("stacked", Scaler("conservative", CPU), clip=10.0)
    norms = call(step, [1.0, 1.0])
    torch.testing.assert_close(norms, torch.tensor([5.25**0.5, 50.0]))
    torch.testing.assert_close(step.parameter.grad, torch.tensor([[-1.0, 2.0, -0.5], [-6.0, -8.0, 0.0]]))

    class ClipFirst(GradientStep):
        def _apply(self, gradients: list[Tensor]) -> Tensor:
            self._clip(gradients)
            return super()._apply(gradients)

    mutant = ClipFirst([[torch.zeros(2, 3).requires_grad_()]], 0.1, 10.0, True, Toggles(), Scaler("conservative", CPU))
    call(mutant, [1.0, 1.0])
    assert mutant.parameter.grad is not None
    torch.testing.assert_close(mutant.parameter.grad[1], torch.tensor([-6.0, -8.0, 0.0]) / 1024)


def iterations(each_step: bool) -> list[float]:
    """Follow the scale of 1 + 2 N = 9 gradient steps per iteration, the first of which overflows in the second one."""
    scaler = Scaler("conservative", CPU)
    steps, seen = [steps_of("stacked", scaler) for _ in range(9)], []
    for number in range(4):
        for step in steps:
            call(step, [1.0, torch.inf if number == 1 and step is steps[0] else 1.0])
            if each_step:
                scaler.update()
        if not each_step:
            scaler.update()
        seen.append(scaler.scale.item())
    return seen


def test_an_iteration_moves_the_scale_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "conservative", (1024.0, 2.0, 0.5, 10))
    assert iterations(each_step=False) == [1024, 512, 512, 512]
    # the mutant: 9 clean steps, an overflow, 8 clean ones; the scale grows after 10, within two iterations
    assert iterations(each_step=True) == [1024, 512, 1024, 2048]


def test_a_restored_scaler_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "conservative", (1024.0, 2.0, 0.5, 3))
    pattern = "x..x.....xx......"
    for cut in range(len(pattern)):
        first, second = Scaler("conservative", CPU), Scaler("conservative", CPU)
        for scaler, part in ((first, pattern[:cut]), (second, pattern[cut:])):
            for overflow in part:
                scaler.skip(torch.tensor([torch.inf if overflow == "x" else 1.0]))
                scaler.update()
            if scaler is first:
                second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
        assert second.scale.item() == scales(pattern)[-1]
        assert second.skipped == pattern.count("x")


def test_a_real_overflow_of_float16_is_found_and_passed() -> None:
    """16 rows of 10 give a gradient of 160; float16 ends at 65504, so scales of 2^16 to 2^9 overflow, 2^8 does not."""
    scaler = Scaler("aggressive", CPU)
    start = torch.zeros(4, 3).requires_grad_()
    step = GradientStep([[start]], 0.1, None, False, Toggles(), scaler)

    def loss(weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast("cpu", torch.float16):
            return (torch.full((16, 4), 10.0) @ weight).float().sum(), {}

    norms = []
    for _ in range(9):
        norms.append(step(loss, start)[1].item())
        scaler.update()
    assert norms == [0] * 8 + [pytest.approx(160 * 12**0.5)]
    assert (scaler.skipped, scaler.scale) == (8, 2**8)
    assert step.state_dict()["step"] == 1
    torch.testing.assert_close(start.detach(), torch.full((4, 3), -0.1))  # Adam's first step: lr, however large


class LowNumbers(TorchDispatchMode):
    """Counts operators that give numbers of 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        low = {torch.bfloat16, torch.float16}
        if any(isinstance(leaf, Tensor) and leaf.dtype in low for leaf in tree_leaves(out)):
            self.seen[func.overloadpacket.__name__] += 1
        return out


class Scaled(Runtime):
    """A runtime whose gradient steps share a scaler."""

    scaler = None

    def grad(self, parameters: Any, lr: float, clip: float | None, stacked: bool = False) -> GradientStep:
        copy = parameters.detach().clone().requires_grad_()
        return GradientStep([[copy]], lr, clip, True, self.toggles, self.scaler)


def learner_in(
    precision: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[MASAC, OffPolicyCollector, Streams, Scaler | None]:
    scaler = Scaler("aggressive", CPU) if precision == "fp16" else None
    monkeypatch.setattr(Scaled, "scaler", scaler)
    rt = Scaled(requested=Toggles(update="batched", precision=precision))
    env, rng = LeaderFollower(followers=1), Streams((0, 1))
    learner = MASAC(MASACConfig(hidden=16, share=False), env.spec, survey(env, rng), rng, rt)
    config = ReplayConfig(worlds=8, batch=16, capacity=512, learning_starts=64)
    return learner, collector(env, learner.policy(env.spec), config, rng, rt), rng, scaler


PRODUCTS = {"baddbmm", "bmm", "_to_copy", "transpose", "detach"}
HIDDEN = {"relu_", "threshold_backward", "native_layer_norm", "native_layer_norm_backward", "sum"}  # sum: of a bias


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_nothing_but_products_and_hidden_layers_leaves_float32(
    precision: str, monkeypatch: pytest.MonkeyPatch, proof: Callable[[str, str], None]
) -> None:
    learner, source, rng, _ = learner_in(precision, monkeypatch)
    densities = []

    def watched(*given: Any) -> tuple[Tensor, Tensor]:
        result = squashed_gaussian(*given)
        densities.extend([*(each for each in given if each is not None), *result])
        return result

    squashed_gaussian = masac.squashed_gaussian
    monkeypatch.setattr(masac, "squashed_gaussian", watched)
    batch, noise = source.next(), learner.update_noise(rng, 16)
    densities.clear()
    with LowNumbers() as low:
        update = learner.update(batch, noise)
    assert len(densities) == 10  # mean, log std, noise, action, log prob; of targets and of actors
    assert {tensor.dtype for tensor in [*densities, *update.metrics.values()]} == {torch.float32}
    assert {tensor.dtype for tensor in learner.state_dict().values()} == {torch.float32}  # Adam, targets of Polyak
    assert low.seen["baddbmm"] >= 5  # two networks in targets, one in the critics' loss, two in the actors'
    assert set(low.seen) <= PRODUCTS | HIDDEN
    proof(
        "float32 kept", "densities, targets, losses, gradients' norms, Adam, Polyak; of all operators, those of layers"
    )


def tables_of(learner: MASAC) -> Tables:
    """Copy the parameters of a learner and Adam's first moments."""
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def half_and_plain(monkeypatch: pytest.MonkeyPatch, apply: Callable = GradientStep._apply) -> tuple[float, float]:
    """Return the errors of changes and gradients of float16 at a scale that has settled, with its own ``_apply``."""
    plain, source, rng, _ = learner_in("fp32", monkeypatch)
    low, _, _, scaler = learner_in("fp16", monkeypatch)
    assert scaler is not None
    rounds = [(source.next(), plain.update_noise(rng, 16)) for _ in range(5)]
    first = tables_of(plain)
    scaler.scale.fill_(CEILING)
    for _ in range(30):
        low.update(*rounds[0])
        scaler.update()
    overflows = int(scaler.skipped)
    assert overflows >= 1
    assert scaler.clean >= 10
    low.load_state_dict(first)
    scaler.scale.div_(2**6)  # no overflow of another batch shall be a difference
    once, ends = [], []
    for learner, method in ((plain, GradientStep._apply), (low, apply)):
        with monkeypatch.context() as patch:
            patch.setattr(GradientStep, "_apply", method)
            for number, (batch, noise) in enumerate(rounds):
                learner.update(batch, noise)
                once += [tables_of(learner)] * (number == 0)
            ends.append(tables_of(learner))
    assert int(scaler.skipped) == overflows
    return max(change_errors(ends[1], ends[0], first).values()), max(gradient_errors(once[1], once[0]).values())


def test_a_learner_in_float16_gets_past_its_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """After them it learns as in float32, to the digits that float16 has."""
    change, gradient = half_and_plain(monkeypatch)
    assert 0 < change <= ALLOWED
    assert 0 < gradient <= ALLOWED


def still_scaled(self: GradientStep, gradients: list[Tensor]) -> Tensor:
    return APPLY(self, [gradient * 8 for gradient in gradients])


@pytest.mark.parametrize("mutant", [*BROKEN, still_scaled])
def test_a_broken_optimizer_is_not_like_float32(mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    change, gradient = half_and_plain(monkeypatch, mutant)
    assert change > ALLOWED or gradient > ALLOWED, (change, gradient)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("adam", SCRATCH)
def test_nothing_waits_for_the_device(adam: Any, device: str) -> None:
    scaler = Scaler("aggressive", torch.device(device))
    start = torch.zeros(2, 3, device=device).requires_grad_()
    step = GradientStep([[start]], 0.1, 1.0, True, Toggles(adam=adam), scaler)
    goal, factors = GOAL.to(device), [torch.tensor([1.0, last], device=device) for last in (1.0, torch.inf, 1.0)]

    def loss(rows: Tensor, factor: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return ((rows - goal).square().sum(1) / 2 * factor).sum(), {}

    step(loss, start, factors[0])
    with sync_debug("error", device):
        for factor in factors:
            step(loss, start, factor)
            scaler.update()
    assert (scaler.skipped, scaler.scale) == (1, 2**15)
