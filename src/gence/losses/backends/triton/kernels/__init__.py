"""The kernels themselves: each is read in one place. The folder above launches them."""

from gence.losses.backends.triton.kernels.finish import finalise
from gence.losses.backends.triton.kernels.group import group_backward, group_labels
from gence.losses.backends.triton.kernels.row_tiles import (
    finish_columns,
    long_rows_backward,
    rows_backward,
    rows_forward,
)
from gence.losses.backends.triton.kernels.stream_backward import stream_gradient, stream_pulls
from gence.losses.backends.triton.kernels.stream_forward import stream_columns, stream_rows
from gence.losses.backends.triton.kernels.tiles import VECTORS
from gence.losses.backends.triton.kernels.tiny import tiny_kernel, tiny_warps
