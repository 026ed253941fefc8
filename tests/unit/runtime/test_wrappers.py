"""Wrappers do not change results; where one cannot work, it warns once and the plain function runs."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from threading import current_thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from uavlab.runtime import wrappers
from uavlab.runtime.toggles import TOGGLES

CPU = torch.device("cpu")


def product(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b).tanh().exp().sum()


def operands() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator).requires_grad_()


class TestPrecision:
    @pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
    def test_products_are_in_lower_precision_and_sums_are_not(self, precision: str, dtype: torch.dtype) -> None:
        seen: list[torch.dtype] = []

        def fn(a: Tensor, b: Tensor) -> Tensor:
            seen.extend([(a @ b).dtype, (a + b).dtype])
            return a

        wrappers.autocast(fn, CPU, precision)(*operands())
        assert seen == [dtype, torch.float32]
        assert not torch.is_autocast_enabled("cpu")

    def test_float64_is_left_alone(self) -> None:
        a, b = (x.detach().double() for x in operands())
        assert torch.equal(wrappers.autocast(product, CPU, "bf16")(a, b), product(a, b))


class TestRecomputed:
    def test_the_same_numbers_and_fewer_kept(self) -> None:
        a, b = operands()
        saved: dict[str, list[Tensor]] = {"plain": [], "recomputed": []}
        gradients = {}
        for name, fn in (("plain", product), ("recomputed", wrappers.recompute_activations(product))):
            with torch.autograd.graph.saved_tensors_hooks(lambda x, n=name: saved[n].append(x) or x, lambda x: x):
                (gradients[name],) = torch.autograd.grad(fn(a, b), b)
        assert torch.equal(gradients["plain"], gradients["recomputed"])
        assert len(saved["recomputed"]) < len(saved["plain"])


def refusing(error: BaseException) -> Callable[..., Any]:
    def compiler(fn: Any, **options: Any) -> Any:
        def call(*given: Any) -> Any:
            raise error

        return call

    return compiler


class TestCompiled:
    @pytest.mark.parametrize("mode", TOGGLES["compile"].choices[1:])
    def test_no_mode_has_graphs_of_its_own(self, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their results are overwritten by the next call, and the loop still needs them."""
        used: list[str] = []
        monkeypatch.setattr(torch, "compile", lambda fn, **options: used.append(options["mode"]) or fn)
        wrappers.compile_function(product, "product", mode, pytest.fail)
        assert not torch._inductor.list_mode_options(used[0]).get("triton.cudagraphs", False)
        if mode == "reduce-overhead":
            assert torch._inductor.list_mode_options(mode) == {"triton.cudagraphs": True}  # and nothing else

    def test_that_a_gpu_could_multiply_in_tf32_is_no_news(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wrappers.compile_function(product, "product", "default", pytest.fail)
        compile_fx = import_module("torch._inductor.compile_fx")  # its import warns as well, unless something compiles
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (9, 0))
        with warnings.catch_warnings(record=True) as caught:
            compile_fx._warn_tf32_disabled.__wrapped__()
        assert caught == []
        with pytest.warns(UserWarning, match="TensorFloat32 tensor cores"):
            compile_fx._warn_tf32_disabled.__wrapped__()

    @pytest.mark.parametrize("message", ["cannot trace\nmore", ""])
    def test_where_it_fails_the_function_runs_as_it_is(self, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
        monkeypatch.setattr(torch, "compile", refusing(TorchDynamoException(message)))
        reasons: list[str] = []
        fn = wrappers.compile_function(product, "product", "default", reasons.append)
        a, b = operands()
        for _ in range(3):
            assert torch.equal(fn(a, b), product(a, b))
        assert len(reasons) == 1
        assert reasons[0].startswith("product: ")
        assert "\n" not in reasons[0]

    def test_an_error_of_the_function_itself_is_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "compile", refusing(RuntimeError("the function's own")))
        with pytest.raises(RuntimeError, match="the function's own"):
            wrappers.compile_function(product, "product", "default", pytest.fail)(*operands())

    def test_kernels_do_not_use_up_each_others_recompilations(self) -> None:
        seen: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", lambda fn, **options: seen.append(fn) or fn)
            for name in ("first", "second"):
                fn = wrappers.compile_function(product, name, "default", pytest.fail)
                assert fn(*operands()) == product(*operands())
        assert [fn.__code__.co_name for fn in seen] == ["first", "second"]
        assert seen[0].__code__ is not seen[1].__code__

    def test_it_is_announced_before_the_first_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events: list[str] = []
        monkeypatch.setattr(torch, "compile", lambda fn, **options: lambda *args: events.append("call") or fn(*args))
        fn = wrappers.compile_function(product, "product", "default", pytest.fail, events.append)
        assert events == []
        for _ in range(2):
            fn(*operands())
        assert events == ["product", "call", "call"]


def test_vector_instructions_are_checked_once_and_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that fails is left to the compiler, which reports it."""
    from torch._inductor import cpu_vec_isa

    calls: list[str] = []
    earlier = wrappers.check_vector_instructions()  # of another test
    if earlier.is_alive():
        earlier.join()

    def refuse() -> None:
        calls.append(current_thread().name)
        raise OSError("no compiler")

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", refuse)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wrappers.check_vector_instructions.cache_clear()
    for name in ("first", "second"):
        wrappers.compile_function(lambda x: x, name, "default", pytest.fail)
    wrappers.check_vector_instructions().join()
    assert calls == ["vector instructions"]
    wrappers.check_vector_instructions.cache_clear()


FINDERS = """
import sys
import threading
from uavlab.runtime.wrappers import check_vector_instructions

class Finders(list):
    def change(self, method, *arguments):
        if threading.current_thread() is not threading.main_thread():
            print(method.__name__)
        method(self, *arguments)

    def insert(self, *arguments):
        self.change(list.insert, *arguments)

    def remove(self, *arguments):
        self.change(list.remove, *arguments)

sys.meta_path = Finders(sys.meta_path)
check_vector_instructions().join()
print("done")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the check then waits for its first use")
def test_the_check_of_vector_instructions_leaves_the_finders_of_modules_alone() -> None:
    """An import skips a finder, and misses its module, where another thread takes one out of the list."""
    printed = subprocess.run([sys.executable, "-c", FINDERS], capture_output=True, text=True, check=True).stdout
    assert printed == "done\n"
