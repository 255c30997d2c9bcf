"""C library of Onrig, and the choice of its variant for this processor; everything in it has a Python form, too."""

from onrig.hw.native.library import ABI, State, library, state, torch_device, variant

__all__ = ["ABI", "State", "library", "state", "torch_device", "variant"]
