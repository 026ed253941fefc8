"""CUDA graphs: the device work of a call is captured once, and each later call replays all of it with one launch.

Requirements on a captured function:

* All tensors are on the device. Nothing waits for the device, and no shape depends on a value; torch refuses both.
* State is written in place. Binding a name to a new tensor raises no error, but the graph keeps using the old tensor.
  A count on the host has the same problem, because a replay runs no Python.
* Random numbers come from generators that are registered with the graph.
* Adam is ``capturable``, and its moments exist.

A check that waits for the device cannot be captured; ``finite_check.DeferredCheck`` replaces it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

WARM_UP = 3  # direct calls before a capture, in which libraries choose kernels and the generators in use are found
MAX_CAPTURES = 4  # in total, if the form of the arguments changes

Form = tuple[torch.Size, torch.dtype, torch.device]


class CudaBackend:
    """CUDA graphs, captured on a stream of their own."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()

    def run(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` on the stream, after all work launched before and before all work launched later."""
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.stream):
                return fn()
        finally:
            torch.cuda.current_stream().wait_stream(self.stream)

    def capture(self, fn: Callable[[], Any], generators: Iterable[Generator]) -> tuple[Any, Callable[[], None]]:
        """Capture ``fn`` without executing it; return its results, and the function that replays it into them."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        default = torch.cuda.default_generators[torch.cuda.current_device()]  # torch registers this one itself
        states = [(generator, generator.clone_state()) for generator in (*generators, default)]
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            # other threads, such as a notebook's, may use the device meanwhile
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                result = fn()
        except BaseException:
            torch.cuda.set_stream(stream)  # otherwise the capture's own stream remains the current one
            for generator, state in states:  # otherwise the generators cannot be used
                generator.graphsafe_set_state(state)
            raise
        return result, graph.replay


@dataclass
class GraphCapture:
    """One graph, with the tensors that it reads its arguments from, and the result that it writes."""

    warm_calls: int = 0
    generators: list[Generator] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    result: Any = None
    replay: Callable[[], None] | None = None  # of a captured graph

    def run(self, arguments: list[Tensor]) -> Any:
        if self.inputs:
            torch._foreach_copy_(self.inputs, arguments)  # one call; views of one buffer are separate inputs
        if self.replay is not None:
            self.replay()
        return self.result


class GraphedFunction:
    """A function whose calls replay one graph.

    Arguments and result are trees of tensors: dataclasses, dictionaries, tuples, lists and None. The first calls run
    the function directly. The result of a replay is valid until the next call. Each form of the arguments (shape, type
    or device) has a graph of its own, and other generators start a new one, up to ``MAX_CAPTURES`` in total. After
    that, or if a capture fails, every call runs the function directly, from the state before the failure.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        fall_back: Callable[[str], None],
        generators: Callable[[], Iterable[Generator]] = tuple,
        backend: CudaBackend | None = None,
    ) -> None:
        """Wrap ``fn``, whose other tensors must stay in the same memory; ``generators`` are those that it may use."""
        self._fn, self._fall_back, self._generators = fn, fall_back, generators
        self._backend = backend or CudaBackend()
        self._captures_left, self._plain = MAX_CAPTURES, False
        self.reset()

    def reset(self) -> None:
        """Drop the graphs; the next calls warm up and capture again. Needed after state has moved to other tensors."""
        self._graphs: dict[tuple[Form, ...], GraphCapture] = {}

    def __call__(self, *args: Any) -> Any:
        if self._plain:
            return self._fn(*args)
        tensors = list(tree_tensors(args))
        forms = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)  # which a graph fixes
        graph = self._graphs.setdefault(forms, GraphCapture())
        if graph.generators and not set(graph.generators).issubset(self._generators()):
            graph = self._graphs[forms] = GraphCapture()
        if graph.warm_calls < WARM_UP:
            return self._warm_up(graph, args)
        if graph.replay or self._capture(graph, args):
            return graph.run(tensors)
        return self._fn(*args)

    def _warm_up(self, graph: GraphCapture, args: tuple[Any, ...]) -> Any:
        graph.warm_calls += 1
        states = [(generator, generator.get_state()) for generator in self._generators()]
        try:
            inputs = clone_tree(args)  # with the memory layout of the capture, on which compiled code is specialised
        except TypeError:  # the capture will fail for the same reason
            inputs = args
        result = self._backend.run(lambda: self._fn(*inputs))
        graph.generators = [g for g, state in states if not torch.equal(state, g.get_state())]
        return result

    def _capture(self, graph: GraphCapture, args: tuple[Any, ...]) -> bool:
        if not self._captures_left:
            self._give_up(f"arguments changed their form after each of {MAX_CAPTURES} captures")
            return False
        self._captures_left -= 1
        try:
            inputs = clone_tree(args)
            graph.result, graph.replay = self._backend.capture(lambda: self._fn(*inputs), graph.generators)
        except Exception as error:  # an error of the function itself is raised again by the direct call
            first = error.__context__ or error  # ending a failed capture fails as well
            self._give_up(f"{type(first).__name__}: {(str(first).strip() or 'no message').splitlines()[0]}")
            return False
        graph.inputs = list(tree_tensors(inputs))
        return True

    def _give_up(self, reason: str) -> None:
        self._plain = True
        self._graphs.clear()  # and their memory
        self._fall_back(reason)


def tree_tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif is_dataclass(tree):
        for part in fields(tree):
            yield from tree_tensors(getattr(tree, part.name))
    elif isinstance(tree, dict | tuple | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tree_tensors(part)


def clone_tree(tree: Any) -> Any:
    """Clone the tensors of a tree; clones of expanded tensors are dense."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if tree is None:
        return None
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{part.name: clone_tree(getattr(tree, part.name)) for part in fields(tree)})
    if isinstance(tree, dict):
        return {key: clone_tree(part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map(clone_tree, tree))
    raise TypeError(f"an argument holds {tree!r}, expected tensors")
