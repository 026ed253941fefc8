"""A training run whose memory is refused continues in smaller pieces, with the bits of a run split so at once."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch

from tests.contracts.test_equality import config
from uavlab.core.errors import RetryWarning
from uavlab.experiment import run_state
from uavlab.experiment.run import Run
from uavlab.learners.masac.loop import MASACLoop
from uavlab.learners.masac.masac import MASAC
from uavlab.replay import ring
from uavlab.runtime import grad_step
from uavlab.runtime.toggles import EAGER

KINDS: dict[str, tuple[type, dict[str, Any]]] = {"loop": (MASACLoop, {}), "batched": (MASAC, EAGER)}


def ended(toggles: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    run = Run(config("leader_follower", {**toggles, "updates": 4}))
    for _ in run.train():
        pass
    return run_state.digest(run), run.rt.retries


def refuse(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, rows_of: Callable[..., int], most: int) -> None:
    """Make a function refuse memory for more than ``most`` rows."""
    fn = getattr(owner, name)

    @wraps(fn)
    def refusing(*given: Any) -> Any:
        if rows_of(*given) > most:
            raise torch.OutOfMemoryError("out of memory")
        return fn(*given)

    monkeypatch.setattr(owner, name, refusing)


def refuse_losses(monkeypatch: pytest.MonkeyPatch, learner: type, phase: str, most: int) -> None:
    """Refuse both losses, or their backward passes."""
    for name in ("critic_loss", "actor_loss"):
        if phase == "forward":
            refuse(monkeypatch, learner, name, lambda *given: rows(*given[1:]), most)
            continue
        fn = getattr(learner, name)

        @wraps(fn)
        def late(*given: Any, fn: Callable = fn) -> Any:
            loss, metrics = fn(*given)
            if rows(*given[1:]) > most:
                loss.register_hook(refused)
            return loss, metrics

        monkeypatch.setattr(learner, name, late)


def rows(*given: Any) -> int:
    """Count the rows of the batch among a function's arguments."""
    return next(each.reward.shape[1] for each in given if hasattr(each, "reward"))


def refused(*given: Any) -> Any:
    raise MemoryError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_step, "free_cache", lambda: None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_refused_targets_and_losses(kind: str, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, toggles = KINDS[kind]
    cut, retries = ended({**toggles, "micro_batches": 4})
    assert retries == []
    batch = config("leader_follower", {}).source.batch
    refuse(monkeypatch, learner, "targets", lambda *given: rows(*given[1:]), batch // 4)
    refuse_losses(monkeypatch, learner, phase, batch // 4)
    with pytest.warns(RetryWarning):
        got, retries = ended(toggles)
    assert [(each["what"], each["phase"], each["from"], each["to"]) for each in retries] == [
        (what, where, pieces, 2 * pieces)
        for what, where in [("targets", "forward"), ("critic_loss", phase), ("actor_loss", phase)]
        for pieces in (1, 2)
    ]
    assert got == cut


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_draw_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toggles = {**KINDS[kind][1], "priorities": "mean"}
    plain = ended(toggles)
    batch = config("leader_follower", {}).source.batch
    refuse(monkeypatch, ring, "view_fields", lambda words, like: words.shape[1], batch // 2)
    with pytest.warns(RetryWarning):
        got, retries = ended(toggles)
    assert (got, [each["what"] for each in retries]) == (plain[0], ["draw"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_finds_no_room_once_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toggles = KINDS[kind][1]
    plain, calls = ended(toggles), []

    def reserve(count: int, device: torch.device) -> None:
        calls.append(count)
        if len(calls) in (2, 5):
            raise MemoryError

    monkeypatch.setattr(grad_step, "reserve", reserve)
    with pytest.warns(RetryWarning):
        got, retries = ended(toggles)
    assert (got, [each["phase"] for each in retries]) == (plain[0], ["optimizer", "optimizer"])


def test_a_cut_that_was_not_made_would_be_noticed() -> None:
    assert ended(EAGER)[0] != ended({**EAGER, "micro_batches": 4})[0]
