"""CUDA graphs: the device work of a call is recorded once, and every later call replays all of it with one launch.

What may be recorded:

* Everything lives on the device. Nothing waits for it, and no shape depends on a value; torch refuses both.
* State is written in place. A name bound to a new tensor is a mistake that nothing refuses: the graph goes on with the
  old one. So is a count kept by the host, because a replay runs no Python.
* Random numbers come from generators that the graph knows.
* Adam is ``capturable``, and its moments are there.

Checks that ask the device are no part of it either; ``DeferredCheck`` takes their place.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from uavlab.core.errors import DivergedError
from uavlab.core.protocols import CheckedTensors
from uavlab.runtime.finite_check import ADVICE, FROM_ENVIRONMENT, LARGEST

WARM_UP = 3  # plain calls before recording, in which libraries choose kernels, and generators are seen to be used
RECORDINGS = 4  # graphs in all, before inputs that never stay alike are given up on
SLOTS = 1024  # names that may be checked; each set of names checked together takes its own
NEVER = 2**62

Form = tuple[torch.Size, torch.dtype, torch.device]


class Backend(Protocol):
    """What runs and records device work: ``Cuda``, or something that behaves like it."""

    def aside(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` where it would be recorded."""
        ...

    def record(self, fn: Callable[[], Any], generators: Iterable[Generator]) -> tuple[Any, Callable[[], None]]:
        """Record ``fn`` without executing any of it; return its result, which each call of the second one fills."""
        ...


class Cuda:
    """CUDA graphs, recorded on a stream of their own."""

    def __init__(self) -> None:
        """Open the stream, on the current device."""
        self.stream = torch.cuda.Stream()

    def aside(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` on the stream, after all that was launched before and before all that is launched later."""
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.stream):
                return fn()
        finally:
            torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, fn: Callable[[], Any], generators: Iterable[Generator]) -> tuple[Any, Callable[[], None]]:
        """Record ``fn``; where that fails, the stream and the generators are as they were."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        default = torch.cuda.default_generators[torch.cuda.current_device()]  # is registered by torch
        states = [(generator, generator.clone_state()) for generator in (*generators, default)]
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            # other threads, a notebook's for instance, may use the device meanwhile
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                result = fn()
        except BaseException:
            torch.cuda.set_stream(stream)  # a failed recording leaves its own stream behind as the current one
            for generator, state in states:  # and generators that refuse to draw
                generator.graphsafe_set_state(state)
            raise
        return result, graph.replay


@dataclass(frozen=True)
class Recording:
    """One graph with the tensors that it reads its arguments from, their forms, and the result that it writes."""

    inputs: list[Tensor]
    forms: list[Form]
    generators: list[Generator]
    result: Any
    replay: Callable[[], None]

    def fits(self, given: list[Tensor], generators: Iterable[Generator]) -> bool:
        """Tell whether the arguments look like those recorded, and the generators are still the same objects."""
        alike = list(map(form, given)) == self.forms
        return alike and (not self.generators or set(self.generators).issubset(generators))

    def play(self, given: list[Tensor]) -> Any:
        """Replay with these arguments."""
        for kept, tensor in zip(self.inputs, given, strict=True):
            kept.copy_(tensor)
        self.replay()
        return self.result


class Captured:
    """A function whose calls are replays of one graph.

    Arguments and result are trees of tensors: dataclasses, dictionaries, tuples, lists and None. The first calls run
    the function as it is, and count. The result of a replay is valid until the next call. Arguments of another form, or
    other generators, begin a new graph, a few times; after that, or if recording fails, the function runs as it is
    for good, from the state that it was in.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        fall_back: Callable[[str], None],
        generators: Callable[[], Iterable[Generator]] = tuple,
        backend: Backend | None = None,
    ) -> None:
        """Wrap ``fn``.

        Args:
            fn: What is to be recorded; all that it reads or writes beside its arguments must stay where it is.
            fall_back: Told the reason, once, if ``fn`` has to run as it is.
            generators: Gives those that ``fn`` may draw from; the graph gets those that it does draw from.
            backend: What records.
        """
        self._fn, self._fall_back, self._generators = fn, fall_back, generators
        self._backend: Backend = backend or Cuda()
        self._left, self._plain = RECORDINGS, False
        self.forget()

    def forget(self) -> None:
        """Drop the graph; the next calls warm up and record anew. Call it when state has moved to other tensors."""
        self._recording: Recording | None = None
        self._drawn: list[Generator] = []
        self._warm = 0

    def __call__(self, *args: Any) -> Any:
        """Call the function, or replay it."""
        if self._plain:
            return self._fn(*args)
        given = list(tensors(args))
        if self._recording and not self._recording.fits(given, self._generators()):
            self.forget()
        if self._recording is None and self._warm < WARM_UP:
            return self._warm_up(args)
        self._recording = self._recording or self._record(args)
        return self._recording.play(given) if self._recording else self._fn(*args)

    def _warm_up(self, args: tuple[Any, ...]) -> Any:
        self._warm += 1
        states = [(generator, generator.get_state()) for generator in self._generators()]
        try:
            inputs = copied(args)  # as they will be recorded: compiled code is made for one layout of its arguments
        except TypeError:  # as recording will say
            inputs = args
        result = self._backend.aside(lambda: self._fn(*inputs))
        self._drawn = [generator for generator, state in states if not torch.equal(state, generator.get_state())]
        return result

    def _record(self, args: tuple[Any, ...]) -> Recording | None:
        if not self._left:
            self._give_up(f"arguments changed their form after each of {RECORDINGS} recordings")
            return None
        self._left -= 1
        try:
            inputs = copied(args)
            result, replay = self._backend.record(lambda: self._fn(*inputs), self._drawn)
        except Exception as error:  # an error of the function itself comes again when it runs as it is
            first = error.__context__ or error  # to end a recording that failed fails as well
            self._give_up(f"{type(first).__name__}: {(str(first).strip() or 'no message').splitlines()[0]}")
            return None
        held = list(tensors(inputs))
        return Recording(held, list(map(form, held)), self._drawn, result, replay)

    def _give_up(self, reason: str) -> None:
        self._plain = True
        self._fall_back(reason)


def form(tensor: Tensor) -> Form:
    """Tell what a graph fixes about a tensor beside its address."""
    return tensor.shape, tensor.dtype, tensor.device


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree, always in the same order."""
    if isinstance(tree, Tensor):
        yield tree
    elif is_dataclass(tree):
        for field in fields(tree):
            yield from tensors(getattr(tree, field.name))
    elif isinstance(tree, dict | tuple | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(part)


def copied(tree: Any) -> Any:
    """Copy a tree with its tensors, which are then dense, also where they were expanded.

    Raises:
        TypeError: It holds something else, whose value a graph would keep for ever.
    """
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if tree is None:
        return None
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{field.name: copied(getattr(tree, field.name)) for field in fields(tree)})
    if isinstance(tree, dict):
        return {key: copied(part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map(copied, tree))
    raise TypeError(f"an argument holds {tree!r}, expected tensors")


class DeferredCheck:
    """``guard.require_finite`` without waiting for the device: what was found stays there until it is read.

    It notes the update in which each tensor first held a bad number, so a late reading still names the cause, not what
    it has spoiled since. Recording a check and starting an update may be part of a graph.
    """

    def __init__(self, device: torch.device) -> None:
        """Reserve a table on the device."""
        self._table = torch.full((1 + SLOTS,), NEVER, dtype=torch.int64, device=device)
        self._now, self._first = self._table[0], self._table[1:]
        self._now.zero_()
        self._checks: dict[tuple[str, ...], tuple[int, int]] = {}  # by names: their first slot, and when in an update
        self._count = 0

    def next_update(self) -> None:
        """Count an update; what is recorded from here on belongs to it."""
        self._now.add_(1)
        self._count = 0

    def record(self, numbers: CheckedTensors) -> None:
        """Note which tensors hold anything but numbers of at most ``guard.LARGEST`` in size."""
        names = tuple(numbers)
        slot, _ = self._checks.get(names, (sum(map(len, self._checks)), None))
        self._checks[names], self._count = (slot, self._count), self._count + 1
        # one operator for all, the one that torch clips gradients with
        largest = torch.stack(torch._foreach_norm([tensor for tensor, _ in numbers.values()], math.inf))
        first = self._first[slot : slot + len(names)]
        torch.where(largest <= LARGEST, first, first.clamp(max=self._now), out=first)  # nan compares as false

    def read(self, number: int) -> None:
        """Refuse bad numbers found in any update so far, the last of which was ``number`` (host sync).

        Raises:
            DivergedError: It names the first bad tensor of the first update that had one, and that update.
        """
        now, *first = self._table.tolist()
        found = [
            (first[slot + i], check, i, name)
            for names, (slot, check) in self._checks.items()
            for i, name in enumerate(names)
            if first[slot + i] < NEVER
        ]
        if not found:
            return
        update, _, _, name = min(found)
        kind = "environment" if name.partition(".")[0] in FROM_ENVIRONMENT else "learner"
        record = {
            "tensor": name,
            "value": f"not finite or too large (checked {now - update} updates later)",
            "expected": f"finite numbers of at most {LARGEST:g} in size",
            "kind": kind,
            "update": number - (now - update),
            "checked": number,
        }
        raise DivergedError(record, ADVICE[kind])
