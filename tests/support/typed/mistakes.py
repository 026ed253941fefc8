"""Mistakes that type checkers find in programs of users: one in each line with the word at its end."""

import torch
from chase import Chase
from torch import Tensor

import uavlab as ul
from uavlab.testing import check_env


class Short(Chase):
    """An environment whose reward lacks an argument."""

    def reward(self, state: object, action: Tensor) -> Tensor:  # type: ignore # pyright: ignore
        """Return nothing of use."""
        return torch.zeros(1)


check_env(3)  # mistake
check_env(Short())  # mistake
ul.trian("leader_follower_quick")  # mistake
ul.start("leader_follower_quick", updates="many")  # mistake
ul.start(Short())  # mistake
ul.fly(3)  # mistake
ul.train("leader_follower_quick").polici()  # mistake
