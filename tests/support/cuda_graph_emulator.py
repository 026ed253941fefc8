"""An emulator of CUDA graphs on a CPU: operators are recorded with their tensors, and replayed on these tensors.

A capture has no lasting effect: every tensor and generator is as before, and new tensors hold rubbish until the first
replay, as on a GPU. The emulator refuses what a capturing stream refuses: waiting for a value, shapes that depend on a
value, numbers from the host, generators that the graph does not know. A replay runs operators, never Python; so a name
bound to a new tensor, a count on the host or an input that was not copied has the same effect as on a GPU. It does not
emulate work on several streams, nor memory that operators of one graph share.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
MASKS = {torch.bool, torch.uint8}
RUBBISH = 0xFF  # in every byte: nan, -1 or True
NEEDS_HOST = (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.lift_fresh.default)
NO_OPERATORS = ("cpu", "numpy", "tolist")  # on a CPU they call none
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)


aside = nullcontext  # around the work of the emulator itself, which another mode must not check


class Emulator:
    """A backend of ``GraphedFunction``.

    Attributes:
        plain: Number of direct calls.
        tapes: All captures, failed ones too.
    """

    def __init__(self) -> None:
        self.plain = 0
        self.tapes: list[Tape] = []

    def run(self, fn: Callable[[], Any]) -> Any:
        self.plain += 1
        return fn()

    def capture(self, fn: Callable[[], Any], generators: Iterable[Generator]) -> tuple[Any, Callable[[], None]]:
        self.tapes.append(tape := Tape(generators))
        try:
            with tape, patch.multiple(Tensor, **{name: partial(waits, name) for name in NO_OPERATORS}):
                result = fn()
        finally:
            tape.undo()
        return result, tape.replay


class Tape(TorchDispatchMode):
    """Operators in order, with the tensors that they read, write and return."""

    def __init__(self, generators: Iterable[Generator]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []
        self.replays = 0
        self.generators = [torch.default_generator, *generators]
        self._states = [generator.get_state() for generator in self.generators]
        self._before: dict[int, tuple[Any, Any]] = {}  # storages written to, with their first content
        self._new: dict[int, Any] = {}  # storages created by operators

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        refuse(func, args)
        for storage in map(Tensor.untyped_storage, written(func, args, kwargs)):
            with aside():
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        with self.registered_only((args, kwargs)):
            result = func(*args, **kwargs)
        given = {storage.data_ptr() for storage in storages((args, kwargs))}
        self._new |= {s.data_ptr(): s for s in storages(result) if s.data_ptr() not in given}
        # aliases without gradients: replays must not meet autograd
        self.calls.append((func, *tree_map_only(Tensor, Tensor.detach, (args, kwargs, result))))
        return result

    @contextmanager
    def registered_only(self, given: Any) -> Iterator[None]:
        """Refuse draws from other generators; drawing no numbers is allowed, as on a GPU."""
        known = {generator._cdata for generator in self.generators}
        others = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Generator) and leaf._cdata not in known]
        states = [generator.get_state() for generator in others]
        yield
        for generator, state in zip(others, states, strict=True):
            if not torch.equal(generator.get_state(), state):
                generator.set_state(state)
                raise RuntimeError("attempt to draw from a generator that is not in capture mode")

    def undo(self) -> None:
        """Restore the tensors that the capture changed, and fill new ones with rubbish."""
        with aside():
            for storage, content in self._before.values():
                storage.copy_(content)
            for storage in self._new.values():
                storage.fill_(RUBBISH)
        for generator, state in zip(self.generators, self._states, strict=True):
            generator.set_state(state)

    def replay(self) -> None:
        """Run the operators again on the same tensors."""
        self.replays += 1
        with aside():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


def refuse(func: Any, args: tuple) -> None:
    """Refuse operators that make the host wait.

    Raises:
        RuntimeError: The operator needs a value, has a shape that depends on one, or copies one from the host.
    """
    by_mask = func in INDEXING and any(index is not None and index.dtype in MASKS for index in args[1])
    shaped = torch.Tag.dynamic_output_shape in func.tags and func not in INDEXING
    if func in NEEDS_HOST or by_mask or shaped:
        waits(func)


def waits(what: Any, *args: Any) -> None:
    raise RuntimeError(f"{what} waits for the device: operation not permitted when stream is capturing")


def written(func: Any, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    """Yield the tensors that an operator writes to in place."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))


def storages(tree: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
