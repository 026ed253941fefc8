"""Without a GPU these measures have a reason; with one, memory is compared and a share is one."""

import math

import pytest
import torch

from tests.unit.benchmarks.claims.test_measures import STAGE_1, TINY
from uavlab.benchmarks.claims import gpu
from uavlab.benchmarks.claims.gpu import memory_mb, peak_memory, utilisation
from uavlab.benchmarks.claims.measures import LOW, Bench, Estimate, NotTestable, gain, lost


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
