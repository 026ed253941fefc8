"""The batch of the comparison fits the time of a step."""

import pytest

from uavlab_lab.suites import external


@pytest.mark.parametrize(
    ("step_ms", "expected"), [(1.0, (64, 2.0)), (5.0, (128, 4.0)), (7.0, (256, 8.0)), (99.0, (256, 8.0))]
)
def test_the_batch_whose_update_is_nearest_a_step(
    step_ms: float, expected: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from uavlab.runtime.runtime import Runtime
    from uavlab_lab.measure.compare import Call

    seconds = iter((0.002, 0.004, 0.008))
    monkeypatch.setattr(external, "BATCHES", (64, 128, 256))
    monkeypatch.setattr(external, "configure", lambda *layers: None)
    monkeypatch.setattr(external, "build_call", lambda config, piece: Call(lambda: None, Runtime()))
    monkeypatch.setattr(external, "time_in_turn", lambda calls, rounds, device: {"": [next(seconds)]})
    assert external._fitting_batch("", {}, step_ms, 3) == expected
