"""Networks stacked layer by layer: evaluated, clipped and laid out like networks of their own."""

import torch

from tests.support.update_rungs import KINDS, Side
from uavlab.core.rng import Streams
from uavlab.learners.masac.loop import evaluate
from uavlab.nets.mlp import StackedMLP


def test_vmap_evaluates_each_network_on_its_own_rows() -> None:
    """A layer without a batching rule would warn of it, and warnings are errors here."""
    net, rng = StackedMLP(3, 4, 2), Streams([0], dtype=torch.float64)
    x = rng.normal("x", 5, 7, 3)[0]
    theta = net.initial(rng.uniform("net", 5, net.count)[0], torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0]))
    out = torch.func.vmap(evaluate)(net.unpack(theta), x)
    torch.testing.assert_close(out, net(theta, x))
    for g in range(5):
        torch.testing.assert_close(out[g], evaluate([piece[g] for piece in net.unpack(theta)], x[g]))


def test_parameters_are_stacked_layer_by_layer() -> None:
    side = Side({name: KINDS[name] for name in ("vmap", "batched")}, 3, True, (3, 5))
    vmap, batched = side.learners["vmap"], side.learners["batched"]
    shapes = [tuple(tensor.shape) for tensor in vmap.critic.parameters]
    assert shapes == [(6, 2, 27, 16), (6, 2, 1, 16), (6, 2, 16, 16), (6, 2, 1, 16), (6, 2, 16, 1), (6, 2, 1, 1)]
    assert [tensor.shape[0] for tensor in vmap.actor.parameters] == [4] * 6  # two runs of two groups
    mine, other = vmap.tensors_to_check(), batched.tensors_to_check()
    for name, (table, _) in mine.items():
        assert torch.equal(table, other[name][0]), name


def test_a_pair_of_critics_is_clipped_by_the_norm_of_all_its_layers() -> None:
    side = Side({name: KINDS[name] for name in ("vmap", "batched")}, 3)
    updates = side.train(1)
    vmap = side.learners["vmap"]
    norm = updates["vmap"].metrics["critic_norm"]
    torch.testing.assert_close(norm, updates["batched"].metrics["critic_norm"])
    assert (norm > vmap.config.clip).any()
    used = torch.stack([tensor.grad.flatten(1).norm(dim=1) for tensor in vmap.critic.parameters]).norm(dim=0)
    torch.testing.assert_close(used, norm[0].clamp(max=vmap.config.clip), rtol=1e-5, atol=0)
