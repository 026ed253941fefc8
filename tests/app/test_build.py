"""Settings choose the device, the seeds and the kind of learner."""

import pytest
import torch

from tests.tiny import tiny
from uavlab.app import build
from uavlab.app.config import RunConfig
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.learners.masac import MASAC
from uavlab.learners.masac_loop import MASACLoop


@pytest.mark.parametrize(
    ("asked", "there", "got"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_the_device(monkeypatch: pytest.MonkeyPatch, asked: str, there: bool, got: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    rt = build.runtime(RunConfig(device=asked, threads=3))  # type: ignore[arg-type]
    assert (rt.device.type, rt.threads) == (got, 3)


def test_cuda_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as refusal:
        build.runtime(RunConfig(device="cuda"))
    assert str(refusal.value) == (
        f"device: cuda requested, but torch.cuda.is_available() is False (torch {torch.__version__}); "
        "use device=auto or cpu, and see `uavlab doctor`."
    )


def test_run_r_has_the_seed_plus_r() -> None:
    rng = build.streams(RunConfig(seed=5, runs=3), torch.device("cpu"))
    assert rng.seeds == (5, 6, 7)
    assert rng.uniform("x", 1).dtype == torch.float32


@pytest.mark.parametrize(("name", "kind"), [("batched", MASAC), ("loop", MASACLoop)])
def test_the_learner(name: str, kind: type) -> None:
    config = tiny(learner=name)
    rt, rng = build.runtime(config.run), Streams([0])
    pupil = build.learner(config, rng, rt)
    assert type(pupil) is kind
    batch = build.source(config, pupil, rng, rt).next()
    assert batch.data.reward.shape == (1, 8, 2)
