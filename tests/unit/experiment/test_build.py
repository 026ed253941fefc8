"""Settings choose the device, the seeds and the kind of learner."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.fixtures_config import tiny
from uavlab.collectors import entries
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.rng import Streams
from uavlab.experiment import build
from uavlab.experiment.config import RunConfig
from uavlab.learners import masac
from uavlab.learners.masac.batched import MASAC, MASACVmap
from uavlab.learners.masac.loop import RUNGS, MASACLoop
from uavlab.runtime import oom_retry
from uavlab.runtime.toggles import Toggles


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
        "learner": (lambda: masac.build(config, entries.survey(config.env, rng), rng, rt), 26_191),
        "source": (lambda: entries.store(config, rng, rt), 4_863),
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
