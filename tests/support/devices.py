"""The devices that a test body runs on, the CPU always and a GPU where there is one, and captures on either."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
DEVICES = ("cpu", pytest.param("cuda", marks=GPU))


def capture(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Make a call once, so that operators prepare themselves, and return what repeats it: on a GPU a CUDA graph."""
    if device == "cpu":
        call()
        return call
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        call()
    return graph.replay
