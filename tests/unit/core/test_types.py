"""Trees of tensors: structure kept, names dotted, worlds selected, state rebuilt."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.types import (
    ChoiceObs,
    Entities,
    EnvSpec,
    MapObs,
    features_of,
    leaves,
    legal_of,
    load_leaves,
    observation_shapes,
    observation_type,
    select,
    tensors,
    tree_map,
)


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


SPEC = EnvSpec(2, obs=3, action=1, horizon=9, dt=1.0, initial_noise=0, step_noise=0, groups=(0, 0))
MAPS, CELLS = {"maps": (7, 2, 3, 5, 5)}, {"place": (7, 2), "legal": (7, 2, 4), "target_cell": (7, 2, 4)}
TEAM, FEATURES = {"team": (7, 6, 5, 5)}, {"features": (7, 2, 8)}


@pytest.mark.parametrize(
    ("changes", "kind", "shapes"),
    [
        ({}, Tensor, {"": (7, 2, 3)}),
        ({"choices": 4}, ChoiceObs, {"features": (7, 2, 3), "legal": (7, 2, 4)}),
        ({"side": 5}, MapObs, MAPS),
        ({"side": 5, "centred": True}, MapObs, MAPS),
        ({"side": 5, "team": 6}, MapObs, {**MAPS, **TEAM}),
        ({"side": 5, "team": 6, "centred": True}, MapObs, {**MAPS, **TEAM, "place": (7, 2)}),
        ({"side": 5, "features": 8}, MapObs, {**MAPS, **FEATURES}),
        ({"side": 5, "choices": 4}, MapObs, {**MAPS, **CELLS}),
        ({"side": 5, "choices": 4, "team": 6, "features": 8}, MapObs, {**MAPS, **TEAM, **CELLS, **FEATURES}),
    ],
)
def test_what_a_team_observes(changes: dict[str, Any], kind: type, shapes: dict[str, tuple[int, ...]]) -> None:
    spec = replace(SPEC, **changes)
    assert (observation_type(spec), observation_shapes(spec, 7)) == (kind, shapes)
    obs: Any = torch.zeros(shapes[""]) if kind is Tensor else kind(**{k: torch.zeros(v) for k, v in shapes.items()})
    vectors = obs if kind is Tensor else obs.features
    assert features_of(obs) is vectors
    assert legal_of(obs) is (None if kind is Tensor else obs.legal)
    assert (legal_of(obs) is None) == (spec.choices == 0)


def test_what_a_tree_lacks_stays_absent() -> None:
    obs = MapObs(maps=torch.ones(2, 1, 1, 1, 1), features=torch.ones(2, 1, 3))
    assert [name for name, _ in leaves(obs)] == ["maps", "features"]
    total = tree_map(torch.add, obs, obs)
    assert (total.place, total.features.sum().item()) == (None, 12)


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


def test_a_flat_observation_is_a_graph_with_masks() -> None:
    things, row = Entities(rows=2, columns=1, features=3, moves=2), [1.0, 0.1, 0.2]
    flat = torch.tensor([*row, 0.0, 0.3, 0.4, 1.0, 0.5, 0.6, 2.0, 1.0])
    assert things.width == len(flat)
    rows, columns, near = (each.tolist() for each in things.split(flat))
    torch.testing.assert_close(torch.tensor(rows), torch.tensor([row, [0.0, 0.3, 0.4]]))
    torch.testing.assert_close(torch.tensor(columns), torch.tensor([[1.0, 0.5, 0.6]]))
    assert near == [2.0, 1.0]
    assert [mask.tolist() for mask in things.masks(flat)] == [[True, False], [True]]
    assert [tuple(mask.shape) for mask in things.masks(flat.expand(4, 5, -1))] == [(4, 5, 2), (4, 5, 1)]
