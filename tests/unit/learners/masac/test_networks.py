"""The forms in which networks are held."""

import torch

from uavlab.learners.masac.masac import list_tensors, map_tensors


def test_every_form_is_walked() -> None:
    one, two, three = (torch.tensor(float(n)) for n in (1, 2, 3))
    for theta, count in ((one, 1), ([one, two], 2), ([[one, two], [three]], 3)):
        assert [tensor.item() for tensor in list_tensors(theta)] == [1.0, 2.0, 3.0][:count]
        doubled = map_tensors(lambda tensor: 2 * tensor, theta)
        assert [tensor.item() for tensor in list_tensors(doubled)] == [2.0, 4.0, 6.0][:count]
    assert [len(part) for part in map_tensors(torch.neg, [[one, two], [three]])] == [2, 1]
