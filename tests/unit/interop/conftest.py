"""TorchRL is imported before the tests of this folder import it, so that other tests start processes as before."""

from uavlab.interop import import_torchrl

import_torchrl()
