"""Trees of tensors: structure kept, names dotted, worlds selected, state rebuilt."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor

from uavlab.core.types import leaves, load_leaves, select, tensors, tree_map


@tensors
class Inner:
    """Innermost."""

    a: Tensor
    b: Tensor


@tensors
class Outer:
    """A tree with a branch in the middle."""

    first: Tensor
    inner: Inner
    last: Tensor


def tree(offset: float = 0.0) -> Outer:
    """Fill every leaf with numbers of its own: 0, 10, 20, 30 and the world's index."""
    base = torch.arange(3.0) + offset
    return Outer(
        first=base,
        inner=Inner(a=base[:, None] + torch.tensor([10.0, 10.5]), b=base.to(torch.int64) + 20),
        last=base + 30,
    )


def test_leaves_are_named_in_order() -> None:
    assert [name for name, _ in leaves(tree())] == ["first", "inner.a", "inner.b", "last"]
    assert [name for name, _ in leaves(tree(), "worlds")][1] == "worlds.inner.a"
    assert [(name, t.item()) for name, t in leaves(torch.tensor(4), "x")] == [("x", 4)]


def test_tree_map_keeps_structure_and_pairs_namesakes() -> None:
    total = tree_map(torch.add, tree(), tree(100.0))
    assert isinstance(total.inner, Inner)
    assert total.first.tolist() == [100, 102, 104]
    assert total.inner.a[2].tolist() == [124, 125]  # 2 + 10 + 102 + 10, and twice the half
    assert total.inner.b.tolist() == [140, 142, 144]
    assert total.last.tolist() == [160, 162, 164]


def test_select_by_world() -> None:
    mixed = select(torch.tensor([False, True, False]), tree(100.0), tree())
    assert mixed.first.tolist() == [0, 101, 2]
    assert mixed.inner.a.tolist() == [[10, 10.5], [111, 111.5], [12, 12.5]]
    assert mixed.inner.b.tolist() == [20, 121, 22]
    assert mixed.inner.b.dtype == torch.int64


def test_load_leaves_rebuilds_copies() -> None:
    state = {f"s.{name}": leaf for name, leaf in leaves(tree(5.0))}
    rebuilt = load_leaves(tree(), state, "s")
    assert rebuilt.inner.b.tolist() == [25, 26, 27]
    rebuilt.first.zero_()
    assert state["s.first"].tolist() == [5, 6, 7]


def test_load_leaves_misses_a_lost_name() -> None:
    state = {f"s.{name}": leaf for name, leaf in leaves(tree())}
    del state["s.inner.b"]
    with pytest.raises(KeyError, match=r"s\.inner\.b"):
        load_leaves(tree(), state, "s")


def test_trees_are_frozen_and_compare_by_identity() -> None:
    with pytest.raises(FrozenInstanceError):
        tree().first = torch.zeros(3)  # type: ignore[misc]
    one = tree()
    assert one == one
    assert one != tree()
    assert len({one, tree()}) == 2
