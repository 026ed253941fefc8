"""Settings choose the device, the seeds and the kind of learner; a task is assembled of what fits, or refused."""

import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from tests.support.lockstep import ThreadRank, together
from uavlab.collectors import world_source
from uavlab.collectors.off_policy import make_store
from uavlab.core import rng as rng_module
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.registry import COLLECTORS, LEARNERS, Environment
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec
from uavlab.experiment import build
from uavlab.experiment.build import ENVIRONMENTS, task
from uavlab.experiment.config import RunConfig, configure
from uavlab.learners.masac import masac
from uavlab.learners.masac.loop import RUNGS, MASACLoop
from uavlab.learners.masac.masac import MASAC, MASACVmap
from uavlab.runtime import oom_retry
from uavlab.runtime.toggles import TOGGLES, Toggles


@pytest.mark.parametrize(
    ("asked", "there", "got"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_the_device(monkeypatch: pytest.MonkeyPatch, asked: str, there: bool, got: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    rt = build.runtime(RunConfig(device=asked), Toggles(threads=3))  # type: ignore[arg-type]
    assert (rt.device.type, rt.toggles.threads) == (got, 3)


@pytest.mark.parametrize(
    ("visible", "why"),
    [(None, ""), ("", ", CUDA_VISIBLE_DEVICES=''"), ("7", ", CUDA_VISIBLE_DEVICES='7'")],
)
def test_cuda_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, visible: str | None, why: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as refusal:
        build.runtime(RunConfig(device="cuda"))
    assert str(refusal.value) == (
        f"device: cuda requested, but torch.cuda.is_available() is False (torch {torch.__version__}{why}); "
        "use device=auto or cpu, and see `uavlab doctor`."
    )


def test_the_bytes_of_a_learner() -> None:
    # 2 actors of 7 x 8 + 8 + 8 x 8 + 8 + 8 x 4 + 4 = 172 parameters, with gradient and two moments each; 2 x 2 critics
    # of 18 x 8 + 8 + 8 x 8 + 8 + 8 + 1 = 233 with targets besides; 2 x 2 critics keep 2 layers of 8 rows of 8
    assert masac.learner_bytes(tiny()) == 4 * (4 * 2 * 172 + 5 * 4 * 233 + 4 * 2 * 8 * 8)
    assert masac.learner_bytes(tiny(runs=3)) == 3 * masac.learner_bytes(tiny())
    assert masac.learner_bytes(tiny(update="loop")) == masac.learner_bytes(tiny())


@pytest.mark.parametrize(("short", "what"), [("learner", "learner: 26,192 bytes"), ("source", "replay: 4,864 bytes")])
def test_what_does_not_fit_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch, short: str, what: str) -> None:
    config = tiny()
    rt, rng = build.runtime(config.run), Streams([0])
    part, free = {
        "learner": (lambda: MASAC.build(config, world_source.survey(config.env, rng), rng, rt), 26_191),
        "source": (lambda: make_store(config, rng, rt), 4_863),
    }[short]
    monkeypatch.setattr(oom_retry.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    with pytest.raises(ResourceError, match=f"^{what}, {free:,} are free on cpu; lower .*\\.$"):
        part()
    monkeypatch.setattr(oom_retry.psutil, "virtual_memory", lambda: SimpleNamespace(available=free + 1))
    part()


def test_run_r_has_the_seed_plus_r() -> None:
    rng = build.streams(RunConfig(seed=5, runs=3), torch.device("cpu"))
    assert rng.seeds == (5, 6, 7)
    assert rng.uniform("x", 1).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, MASACLoop) for name in RUNGS), ("vmap", MASACVmap), ("batched", MASAC)],
)
@pytest.mark.parametrize("acting", ["loop", "batched"])
def test_the_learner(name: str, kind: type, acting: str) -> None:
    config = tiny(update=name, acting=acting)
    rt, rng = build.runtime(config.run, config.toggles), Streams([0])
    pupil, source = config.task.build(config, rng, rt)
    assert type(pupil) is kind
    assert pupil.acting == acting
    assert not isinstance(pupil, MASACLoop) or pupil.rung is RUNGS[name]
    batch = source.next()
    assert batch.data.reward.shape == (1, 8, 2)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_names_a_learner_that_fits(name: str) -> None:
    chosen = task(name)
    assert chosen.learner == ENVIRONMENTS[name].learner
    assert LEARNERS[chosen.learner].unsupported(ENVIRONMENTS[name].kind().spec) is None
    assert chosen.settings == (
        COLLECTORS[LEARNERS[chosen.learner].collector].settings,
        LEARNERS[chosen.learner].settings,
        ENVIRONMENTS[name].kind,
    )


def test_a_learner_that_does_not_fit_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"^learner coma cannot learn leader_follower: .*Learners that can: masac, mappo, ippo.$"
    ):
        configure("leader_follower", {"learner": "coma"})
    with pytest.raises(ConfigError, match=r"^unknown learner 'masak' \(did you mean 'masac'\?\)"):
        configure("leader_follower", {"learner": "masak"})
    with pytest.raises(ConfigError, match=r"^learner: expected a name, got 3.$"):
        configure("leader_follower", {"learner": 3})


@pytest.mark.parametrize("name", ["mapping", "telemetry"])
def test_a_learner_of_continuous_actions_refuses_other_environments(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^learner masac cannot learn {name}: "):
        task(name, "masac")


def test_without_a_default_the_first_learner_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Maps:
        choices: int = 4
        side: int = 3

        @property
        def spec(self) -> EnvSpec:
            return EnvSpec(1, 1, 1, 10, 1.0, 1, 1, (0,), choices=self.choices, side=self.side)

    @dataclass(frozen=True)
    class Vectors(Maps):
        choices: int = 0
        side: int = 0

    @dataclass(frozen=True)
    class ContinuousMaps(Maps):
        choices: int = 0

    for kind, learner in ((Maps, "coma"), (Vectors, "masac"), (ContinuousMaps, "mappo")):
        monkeypatch.setitem(ENVIRONMENTS, "maps", Environment(kind))
        assert task("maps").learner == learner


def test_toggles_of_missing_parts_are_unserved() -> None:
    assert set(task("leader_follower").inapplicable) == {"loader", "maps"}
    assert {"update", "prefetch", "loader"} <= set(task("mapping").inapplicable)
    assert "maps" not in task("mapping").inapplicable
    assert task("telemetry").inapplicable["interval"] == "this learner learns from logs, no team flies"


def test_a_second_learner_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered learner is served at once, for every environment that it fits."""
    monkeypatch.setitem(LEARNERS, "mine", LEARNERS["masac"])
    config = configure("leader_follower", {"learner": "mine"})
    assert (config.task.learner, config.values["learner"]) == ("mine", "mine")


def test_a_toggle_of_the_default_set_is_no_fallback_where_its_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever registers it: nobody asked for its value, so nobody is warned."""
    outside = replace(TOGGLES["prefetch"], name="outside", eager="on")
    monkeypatch.setitem(TOGGLES, "outside", outside)
    for value, reasons in (("on", []), ("overlap", ["outside"])):
        config = configure("mapping", sizes("mapping"), {"outside": value})
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            rt, *_ = build.assemble(config)
        assert list(rt.fell_back) == reasons


@pytest.mark.parametrize("learner", ["masac", "mappo"])
def test_all_ranks_start_with_the_learner_of_rank_0(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("leader_follower", sizes("leader_follower", learner), {"learner": learner})

    def states(rank: ThreadRank) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        _, rng, built, source = build.assemble(config, ranks=rank)
        assert rng.rank == rank.rank
        return {name: each.clone() for name, each in built.state_dict().items()}, source.state_dict()

    monkeypatch.setattr(rng_module, "SHARED", set())  # as a learner that draws from streams of its own
    (first, worlds), (second, others) = together(states)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(worlds["worlds.obs"], others["worlds.obs"])
    monkeypatch.setattr(ThreadRank, "from_first", lambda rank, tensor: tensor)  # the mutant
    (first, _), (second, _) = together(states)
    assert not all(torch.equal(first[name], second[name]) for name in first)


def test_tensors_of_the_worlds_of_a_rank_are_not_shared() -> None:
    config = configure("leader_follower", sizes("leader_follower", "mappo"), {"learner": "mappo", "memory": 4})
    _, _, learner, _ = build.assemble(config)
    assert set(learner.local) < set(learner.state_dict())
