"""Every learner runs whole cycles on a GPU that refuses mixed devices and undeclared host syncs, with every toggle.

The host syncs of each cycle are counted. Those of logging and scores are declared; no other cycle waits, except where a
toggle's value works on the host.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.test_equality import MEMORY, NUMBERS, tasks
from tests.support.fake_device import CUDA, MixedDevicesError, WaitError, Waits, fake_device
from tests.support.fixtures_config import sizes
from uavlab.collectors import world_source
from uavlab.experiment.build import task
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.runtime import cuda_graph
from uavlab.runtime.toggles import EAGER, TOGGLES, Toggles, as_dict, toggle_presets
from uavlab.training import training

Changes = dict[str, Any]

WARM_UP, UPDATES = 2, 4  # direct calls before a capture, in which constants are copied to the device as well
NEVER = 100
LESS = {"measurements": 2, "evaluate_episodes": 1, "worlds": 2}
WAITS = {"loader=per_item": 1, "loader=stream": 1, "placement=host": 3, "placement=pinned": 3}  # per cycle
WAITS_OF_STEP = 2  # per cycle, for each later step of returns, whose rows are copied from the host, too
ONLY_CPU = {"maps"}  # numpy and OpenCV


def cases() -> list[Any]:
    """Return each set of toggles and each value alone, for each learner on which it has an effect."""
    sets = toggle_presets(CUDA)
    for toggle in TOGGLES.values():
        values = set(toggle.choices or (NUMBERS.get(toggle.name, 2),)) - {toggle.default, toggle.eager}
        sets |= {f"{toggle.name}={value}": {**EAGER, toggle.name: value} for value in sorted(values, key=str)}
    rows = [pytest.param("spread", "mappo", {**EAGER, **MEMORY}, id="mappo-memory")]
    rows += [pytest.param("spread", "mappo", {**EAGER, **MEMORY, "graph": "cycle"}, id="mappo-memory-graph=cycle")]
    noisy = {**EAGER, "noisy": True}
    rows += [pytest.param("spread", "mappo", noisy, id="mappo-noisy")]
    rows += [pytest.param("spread", "mappo", {**noisy, "graph": "cycle"}, id="mappo-noisy-graph=cycle")]
    shared = {**EAGER, "critic": "shared"}
    for place in ("device", "host"):
        one_step = {**EAGER, "placement": place, "n_step": 1}
        rows.append(pytest.param("leader_follower", "masac", one_step, id=f"masac-one-step-placement={place}"))
    rows += [pytest.param("spread", learner, shared, id=f"{learner}-shared") for learner in ("masac", "mappo")]
    for case in tasks():
        env, learner = case.values
        idle = task(env, learner).inapplicable
        for name, values in sets.items():
            if name.partition("=")[0] not in idle:
                rows.append(pytest.param(env, learner, values, id=f"{learner}-{name}", marks=case.marks))
    return rows


def run_of(env: str, learner: str | None, toggles: Changes, device: str = "cuda", every: int = NEVER) -> Run:
    own = {"learner": learner} if learner else {}
    small = {name: value for name, value in LESS.items() if name in configure(env, own).values}
    ends = {"updates": NEVER, "log_every": every, "evaluate_every": every, "checkpoint_every": NEVER, "device": device}
    return Run(configure(env, sizes(env, learner), small, as_dict(Toggles()), toggles, ends, own))


def cycles(run: Run, waits: Waits | None = None, updates: int = UPDATES) -> list[int]:
    """Run cycles; return the host syncs of each, and refuse undeclared ones once every constant is on the device."""
    counts = []
    with run.rt.scope():
        for number, update in training(run.source, run.learner, run.rng, run.rt, 0, updates):
            run.number = number
            run._after(update)
            if waits is not None:
                counts.append(waits.total())
                waits.clear()
                waits.strict = run.number >= WARM_UP
    return counts


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_source, "SURVEY_STEPS", 2)
    monkeypatch.setattr(cuda_graph, "WARM_UP", WARM_UP)


@pytest.mark.filterwarnings("ignore:maps=", "ignore:'pin_memory' argument")
@pytest.mark.parametrize(("env", "learner", "toggles"), cases())
def test_a_cycle_keeps_to_its_device_and_never_waits(env: str, learner: str, toggles: Changes) -> None:
    scored = toggles in toggle_presets(CUDA).values()
    with fake_device(strict=False) as waits:
        run = run_of(env, learner, toggles, every=2 if scored else NEVER)
        counts = cycles(run, waits)
        assert all(tensor.is_cuda for tensor in run.learner.state_dict().values() if tensor.dim())
    assert set(run.rt.fell_back) <= ONLY_CPU, run.rt.fell_back
    served = {
        name: value for name, value in as_dict(run.rt.toggles).items() if name not in run.config.task.inapplicable
    }
    expected = sum(WAITS.get(f"{name}={value}", 0) for name, value in served.items())
    if served.get("placement", "device") != "device":
        expected += WAITS_OF_STEP * (getattr(run.config.learner, "n_step", 1) - 1)
    assert counts[2] == expected, counts
    assert counts[3] > expected if scored else counts[3] == expected, counts


@pytest.mark.parametrize(("env", "learner"), tasks())
@pytest.mark.parametrize("name", [name for name, values in toggle_presets(CUDA).items() if "graph" in values])
def test_sets_with_graphs_compute_what_they_do_without(env: str, learner: str, name: str) -> None:
    ends = []
    for change in ({}, {"graph": "off"}):
        with fake_device(strict=False):
            run = run_of(env, learner, {**toggle_presets(CUDA)[name], **change})
            cycles(run, updates=WARM_UP + 3)
            assert run.rt.fell_back == {}
            ends.append({name: tensor.cpu() for name, tensor in run.learner.state_dict().items()})
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_it_computes_what_the_cpu_does() -> None:
    with fake_device(strict=False):
        fake = run_of("leader_follower", None, EAGER)
        cycles(fake)
        ends = {name: tensor.cpu() for name, tensor in fake.learner.state_dict().items()}
    plain = run_of("leader_follower", None, EAGER, "cpu")
    cycles(plain)
    assert all(torch.equal(ends[name], tensor) for name, tensor in plain.learner.state_dict().items())


def mixes(values: Tensor) -> Tensor:
    return values + torch.ones(1)


def asks(values: Tensor) -> Tensor:
    return values * (1.0 if values.isfinite().all() else 0.0)


@pytest.mark.parametrize(("mutant", "error"), [(mixes, MixedDevicesError), (asks, WaitError)])
def test_a_learner_that_mixes_devices_or_waits_is_refused(mutant: Callable, error: type[Exception]) -> None:
    with fake_device(strict=False) as waits:
        run = run_of("leader_follower", None, EAGER)
        update = run.learner.update

        def broken(batch: Any, noise: Any) -> Any:
            result = update(batch, noise)
            mutant(result.metrics["q"])
            return result

        run.learner.update = broken
        with pytest.raises(error):
            cycles(run, waits)


READS: list[Callable[[Tensor], Any]] = [
    lambda x: x[0].item(),
    lambda x: x.tolist(),
    lambda x: bool(x[0]),
    lambda x: float(x[0]),
    lambda x: int(x[0]),
    lambda x: x.cpu(),
    lambda x: x.to("cpu"),
    lambda x: x.nonzero(),
    lambda x: x[x > 1],
    lambda x: x.masked_select(x > 1),
    lambda x: x.unique(),
    lambda x: torch.equal(x, x),
    lambda x: torch.tensor([1.0, 2.0], device=x.device),
    lambda x: torch.ones(2).to(x.device),
    lambda x: x[[0, 1]],
    lambda x: x.copy_(torch.ones(3)),
]


@pytest.mark.parametrize("read", READS)
def test_each_kind_of_wait_is_refused(read: Callable) -> None:
    with fake_device():
        x = torch.arange(3.0, device="cuda")
        with pytest.raises(WaitError, match="waits for the device"):
            read(x)


def test_what_does_not_wait_is_allowed_and_what_is_declared_is_counted() -> None:
    def declared(x: Tensor) -> float:
        return x.sum().item()  # host sync

    with fake_device() as waits:
        x = torch.arange(3.0, device="cuda")
        zeros = torch.zeros(2, dtype=torch.int64, device="cuda")
        y = torch.where(x > 1, x, 2.0).index_select(0, zeros) + torch.tensor(1.0)
        assert (y.device, y.is_cuda, y[0].device, x.new_zeros(2).device) == (CUDA, True, CUDA, CUDA)
        assert waits.total() == 0
        assert declared(x) == 3.0
    assert dict(waits) == {"test_fake_device.py:declared": 1}


MIXED: list[Callable[[Tensor], Any]] = [
    lambda x: x + torch.ones(3),
    lambda x: torch.stack([x, torch.ones(3)]),
    lambda x: x.index_select(0, torch.zeros(1, dtype=torch.int64)),
    lambda x: torch.rand(3, generator=torch.Generator(), device=x.device),
]


@pytest.mark.parametrize("mixed", MIXED)
def test_each_kind_of_mixed_devices_is_refused(mixed: Callable) -> None:
    with fake_device():
        x = torch.arange(3.0, device="cuda")
        with pytest.raises(MixedDevicesError):
            mixed(x)
