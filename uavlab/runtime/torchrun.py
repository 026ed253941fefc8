"""The ranks that torchrun starts: the place of this process among them, and their connection."""

import os
from datetime import timedelta

import torch
from torch import distributed

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.text import quote
from uavlab.runtime.ranks import ALONE, Backend, Group, Ranks, launcher

IN_USE = ("EADDRINUSE", "ddress already in use")


def join(backend: Backend = "auto", timeout_s: float = 120.0, device: str = "auto") -> Ranks:
    """Connect the ranks that torchrun started, and return this one; a process that was started alone is rank 0 of 1.

    Each rank of a machine with several GPUs gets one of its own.
    """
    rank, size = place()
    if size == 1:
        return ALONE
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    chosen = _backend(backend, device)
    limit = timedelta(seconds=timeout_s)
    try:
        store, _, _ = next(distributed.rendezvous("env://", rank, size, timeout=limit))
        attempt = distributed.PrefixStore(f"uavlab/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        distributed.init_process_group(chosen, store=attempt, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        if any(part in str(error) for part in IN_USE):
            raise ConfigError(
                f"ranks: MASTER_PORT of {where} is in use; expected a free port. Start by torchrun with --standalone, "
                "which finds one, or with --master-port=PORT."
            ) from error
        raise ResourceError(
            f"ranks: rank {rank} of {size} could not be connected at {where} within {timeout_s:g} s ({reason}); start "
            f"all ranks by `{launcher()} train PRESET`."
        ) from error
    return Group(rank, size, store=attempt, timeout_s=timeout_s)


def place() -> tuple[int, int]:
    """Return the number of this process among ranks, and their count, as torchrun set them; 0 and 1 without it."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1
    size = _whole("WORLD_SIZE", 1, 2**16)
    if size == 1:
        return 0, 1
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise ConfigError(
            f"ranks: WORLD_SIZE is {size}, but {', '.join(missing)} is not set; start by `{launcher()} train PRESET`, "
            "or unset WORLD_SIZE."
        )
    _whole("MASTER_PORT", 1, 2**16 - 1)
    return _whole("RANK", 0, size - 1), size


def restarts() -> int:
    """Return how often torchrun has started the ranks again."""
    return _whole("TORCHELASTIC_RESTART_COUNT", 0, 2**31, "0")


def _whole(name: str, least: int, most: int, default: str = "") -> int:
    text = os.environ.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise ConfigError(
            f"ranks: {name} is {quote(text)}; expected a whole number from {least} to {most}, as torchrun sets it: "
            f"start by `{launcher()} train PRESET`."
        )
    return int(text)


def _backend(backend: Backend, device: str) -> str:
    """Return the backend for ``init_process_group``, and choose this rank's GPU."""
    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    here = _whole("LOCAL_WORLD_SIZE", 1, 2**16, "1")
    local = _whole("LOCAL_RANK", 0, 2**16 - 1, "0")
    if backend == "nccl" and (gpus < here or not distributed.is_nccl_available()):
        raise ConfigError(
            f"rank_backend: nccl needs a GPU for each rank, got {gpus} for {here} here; use auto or gloo."
        )
    if gpus:
        torch.cuda.set_device(local % gpus)
    fast = gpus >= here and distributed.is_nccl_available() and backend != "gloo"
    return "cpu:gloo,cuda:nccl" if fast else "gloo"
