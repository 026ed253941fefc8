"""Without a GPU these measures have a reason; with one, memory is compared and a share is one."""

import math
from dataclasses import replace

import pytest
import torch

from tests.unit.benchmarks.claims.test_measures import STAGE_1, TINY
from uavlab_lab.claims import gpu
from uavlab_lab.claims.gpu import memory_mb, peak_memory, utilisation
from uavlab_lab.claims.measures import LOOP, LOW, Bench, Estimate, NotTestable, gain, lost
from uavlab_lab.measure.compare import build_call


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


class TestGPU:
    def test_without_one_it_is_required(self, bench: Bench) -> None:
        with pytest.raises(NotTestable, match="needs a GPU: device memory"):
            peak_memory(bench, after=STAGE_1)
        with pytest.raises(NotTestable, match="needs a GPU: device memory"):
            memory_mb(bench)
        with pytest.raises(NotTestable, match="needs a GPU: device utilisation"):
            utilisation(bench)
        for function in (gain, lost):
            with pytest.raises(NotTestable, match="needs a GPU: copies between host and device"):
                function(bench, call="cycle", before={"placement": "host"})

    def test_memory_before_and_after(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpu, "memory_mb", lambda bench, setting, agents: Estimate(65 if setting else 100))
        note = "100 MB before, 65 MB after"
        assert peak_memory(bench, STAGE_1) == Estimate(0.65, note=note)
        assert peak_memory(bench, STAGE_1, saved=True) == Estimate(pytest.approx(0.35), note=note)

    def test_utilisation_is_what_nvml_reports_or_else_a_profile(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call of 10 ms in which kernels run for 2 ms; the first third of the readings is left out."""
        clock, readings = [0.0], iter([0.5, 0.75, *[0.25] * 28])

        def call() -> None:
            clock[0] += 0.01

        monkeypatch.setattr(gpu.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(gpu, "time_call", lambda call, device: call() or 0.01)
        monkeypatch.setattr(gpu, "time_in_turn", lambda calls, *_, **__: {"call": [0.01] * 6})
        monkeypatch.setattr(gpu, "profile", lambda *_, **__: [{"device_ms": 1.5}, {"device_ms": 0.5}])
        monkeypatch.setattr(gpu, "gpu_load", lambda device: {"load/gpu": next(readings), "load/gpu_watts": 1.0})
        one = replace(build_call(bench.config(LOOP), "update"), call=call)
        measured = gpu.device_share(bench, one)
        assert measured.value == pytest.approx((0.5 + 0.75 + 18 * 0.25) / 20, abs=0.01)  # a reading every 0.1 s for 2 s
        assert (measured.note, measured.rounds) == ("by NVML; 20 % by a profile", 6)

        def missing(device: torch.device) -> dict[str, float]:
            raise ModuleNotFoundError("pynvml does not seem to be installed")

        monkeypatch.setattr(gpu, "gpu_load", missing)
        assert gpu.device_share(bench, one) == Estimate(pytest.approx(0.2), note="by a profile, without NVML", rounds=6)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_what_only_a_gpu_shows(self) -> None:
        bench = Bench(3, **TINY | {"device": "cuda"}, compile="off")
        host, device = ({"stage": 1, "placement": place} for place in ("host", "device"))
        copies = {"call": "cycle", "before": host, "after": device}
        assert math.isfinite(lost(bench, **copies).value)
        assert math.isfinite(peak_memory(bench, after={"stage": 2}, saved=True).value)
        assert peak_memory(bench, before=STAGE_1, after={"stage": 1, "precision": LOW}).value > 0
        assert 0 < utilisation(bench).value <= 1
        assert 0 < utilisation(bench, setting={"stage": 2}).value <= 1
