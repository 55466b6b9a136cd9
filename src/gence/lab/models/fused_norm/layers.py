"""The residual block of a ResNet with its norms fused, and a sequence of layers likewise."""

from __future__ import annotations

from torch import Tensor, nn

from gence.lab.models.fused_norm.norm import Paired, norm_add_relu, norm_relu


class ResidualBlock(nn.Module):
    """One of torchvision's residual blocks: the same layers under the same names, computing the same.

    Convolutions ``conv1``, ``conv2``, ... each with its BatchNorm ``bn1``, ``bn2``, ..., one ``relu`` for all, and
    where shapes change a ``downsample`` of a convolution and a BatchNorm.

    Args:
        block: torchvision's block, whose layers are taken over.
        feeds_block: whether another block reads the output, which it does twice.
    """

    relu: nn.Module
    downsample: nn.Sequential | None

    def __init__(self, block: nn.Module, *, feeds_block: bool) -> None:
        super().__init__()
        for name, layer in block.named_children():
            self.add_module(name, layer)
        if "downsample" not in self._modules:
            self.downsample = None
        self.depth = sum(name.startswith("conv") for name, _ in block.named_children())
        self.feeds_block = feeds_block

    def forward(self, x: Paired) -> Paired:
        """Return the block's output for x, both (n, C, H, W), or both in pairs."""
        branch, skip = x if isinstance(x, tuple) else (x, x)
        for i in range(1, self.depth):
            branch = norm_relu(self._layer("bn", i), self.relu, self._layer("conv", i)(branch))
        branch = self._layer("conv", self.depth)(branch)
        skip_norm = None
        if self.downsample is not None:
            convolution, skip_norm = self.downsample
            skip = convolution(skip)
        last_norm = self._layer("bn", self.depth)
        return norm_add_relu(last_norm, self.relu, branch, skip, skip_norm, pair=self.feeds_block)

    def _layer(self, kind: str, number: int) -> nn.Module:
        layer: nn.Module = self._modules[f"{kind}{number}"]  # type: ignore[assignment]
        return layer


class FusedSequential(nn.Sequential):
    """``nn.Sequential`` that takes a BatchNorm and the ReLU behind it as one operation."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the last layer's output."""
        layers = [*self, None]
        i = 0
        while (layer := layers[i]) is not None:
            behind = layers[i + 1]
            if isinstance(layer, nn.BatchNorm2d) and isinstance(behind, nn.ReLU):
                input = norm_relu(layer, behind, input)
                i += 2
            else:
                input = layer(input)
                i += 1
        return input
