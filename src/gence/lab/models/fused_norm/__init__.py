"""BatchNorm, the addition of the shortcut and the ReLU as one operation on a GPU; plain layers otherwise.

`layers` builds networks from it, `norm` is the operation, `launch` and `kernels` are its Triton side.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.models.fused_norm.norm import (
        FusedSequential,
        Paired,
        ResidualBlock,
        norm_add_relu,
        norm_relu,
        norm_relu_for_two,
        plain_norms,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
