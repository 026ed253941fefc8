"""Memory that is refused, and memory that is free."""

import gc

import psutil
import torch

from uavlab.core.errors import ResourceError

OOM_MESSAGES = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")  # of allocators and cuBLAS


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation was refused, on the CPU or on a GPU."""
    by_message = isinstance(error, RuntimeError) and any(message in str(error) for message in OOM_MESSAGES)
    return by_message or isinstance(error, MemoryError | torch.OutOfMemoryError)


def require_memory(needed: int, what: str, remedy: str, device: torch.device) -> None:
    if needed > (free := free_memory(device)):
        raise ResourceError(f"{what}: {needed:,} bytes, {free:,} are free on {device}; lower {remedy}.")


def free_memory(device: torch.device) -> int:
    on_cuda = device.type == "cuda"
    return torch.cuda.mem_get_info(device)[0] if on_cuda else psutil.virtual_memory().available


def free_cache() -> None:
    """Collect garbage, and return cached memory of the GPU to its driver."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refusal_reason(error: Exception) -> str:
    """Return the first line of an allocator's message; raise any other error again, in an ``except`` block."""
    if not is_out_of_memory(error):
        raise error
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    if is_capturing():
        raise ResourceError(
            f"memory was refused while a CUDA graph was captured ({reason}); nothing can be tried again there. Set "
            "micro_batches or a smaller batch beforehand, or graph=off."
        ) from error
    return reason
