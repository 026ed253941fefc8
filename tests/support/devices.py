"""The devices that a test body runs on: the CPU always, a GPU where there is one."""

import pytest
import torch

GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
DEVICES = ("cpu", pytest.param("cuda", marks=GPU))
