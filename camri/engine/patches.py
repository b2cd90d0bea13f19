"""A convolution of few channels as patches and one matrix product."""

from torch import Tensor, cat, nn
from torch.nn import functional as F

MOST = 32  # numbers in a patch; beyond it the patches take more memory traffic than the product saves


class PatchConv2d(nn.Conv2d):
    """The same convolution; tensor cores do the product better, its width filled up to a multiple of eight."""

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether a layer may be made one, by setting its class."""
        return (
            type(layer) is nn.Conv2d
            and layer.groups == 1
            and layer.stride == layer.dilation == (1, 1)
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and layer.weight[0].numel() <= MOST
        )

    def forward(self, x: Tensor) -> Tensor:
        high, wide = self.kernel_size
        down, right = (int(one) for one in self.padding)
        x = F.pad(x.permute(0, 2, 3, 1), (0, 0, right, right, down, down))
        rows, columns = x.shape[1] - high + 1, x.shape[2] - wide + 1
        moved = [x[:, i : i + rows, j : j + columns] for i in range(high) for j in range(wide)]
        missing = (0, -high * wide * self.in_channels % 8)
        patches = F.pad(cat(moved, dim=-1), missing)
        weight = F.pad(self.weight.permute(0, 2, 3, 1).flatten(1), missing)
        return F.linear(patches, weight, self.bias).permute(0, 3, 1, 2)
