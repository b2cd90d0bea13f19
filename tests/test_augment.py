"""TrivialAugment and mixup against plain computations of one image after another, in float64 or by Pillow."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from camri import augment
from camri.augment import OPERATIONS, mixup, trivial_augment
from camri.methods import setting

STRENGTHS = (-1.0, -0.4, 0.0, 0.3, 0.85)


def photos(num, channels=3, height=9, width=12, seed=0):
    """Smooth 8-bit images and one of a single level, (B, C, H, W) in [0, 1]."""
    drawn = torch.randint(20, 230, (num, channels, 3, 4), generator=torch.Generator().manual_seed(seed)).double()
    images = torch.nn.functional.interpolate(drawn, size=(height, width), mode="bilinear").round() / 255
    images[-1] = 0.4
    return images


def moved(image, matrix, shift):
    """Each pixel of the result by hand: bilinear, zero outside; `matrix` maps centred (x, y) to where it comes from."""
    height, width = image.shape[1:]
    result = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            x, y = matrix @ [column - (width - 1) / 2, row - (height - 1) / 2] + shift
            x, y = x + (width - 1) / 2, y + (height - 1) / 2
            for near_y in (math.floor(y), math.floor(y) + 1):
                for near_x in (math.floor(x), math.floor(x) + 1):
                    if 0 <= near_y < height and 0 <= near_x < width:
                        share = (1 - abs(x - near_x)) * (1 - abs(y - near_y))
                        result[:, row, column] += share * image[:, near_y, near_x]
    return result


def as_pillow(image):
    return Image.fromarray((image.transpose(1, 2, 0) * 255).round().astype(np.uint8))


def from_pillow(image):
    return np.asarray(image).astype(float).transpose(2, 0, 1) / 255


def by_hand(name, image, strength):
    """One operation on one image (C, H, W), and how far Pillow's 8 bits may be off."""
    height, width = image.shape[1:]
    identity, still = np.eye(2), np.zeros(2)
    factor, grey = 1 + 0.9 * strength, np.tensordot([0.299, 0.587, 0.114], image, 1)
    if name in ("shear_x", "shear_y"):
        matrix = identity.copy()
        matrix[(0, 1) if name == "shear_x" else (1, 0)] = 0.3 * strength
        return moved(image, matrix, still), 1e-9
    if name in ("translate_x", "translate_y"):
        place = 0 if name == "translate_x" else 1
        return moved(image, identity, 0.3 * strength * (width, height)[place] * identity[place]), 1e-9
    if name == "rotate":
        cos, sin = math.cos(math.radians(30) * strength), math.sin(math.radians(30) * strength)
        return moved(image, np.array([[cos, sin], [-sin, cos]]), still), 1e-9
    if name == "brightness":
        return np.clip(image * factor, 0, 1), 1e-9
    if name == "colour":
        return np.clip(grey + factor * (image - grey), 0, 1), 1e-9
    if name == "contrast":
        return np.clip(grey.mean() + factor * (image - grey.mean()), 0, 1), 1e-9
    if name == "sharpness":
        return from_pillow(ImageEnhance.Sharpness(as_pillow(image)).enhance(factor)), 3 / 255  # rounded twice
    if name == "posterize":
        return from_pillow(ImageOps.posterize(as_pillow(image), 8 - round(4 * abs(strength)))), 1e-9
    if name == "solarize":
        return np.where(image >= 1 - abs(strength), 1 - image, image), 1e-9
    if name == "autocontrast":
        return from_pillow(ImageOps.autocontrast(as_pillow(image))), 1.01 / 255
    if name == "equalize":
        return from_pillow(ImageOps.equalize(as_pillow(image))), 1e-9
    return image, 0.0


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_what_a_plain_computation_of_one_image_gives(name):
    images = photos(len(STRENGTHS), height=20, width=30) if name == "equalize" else photos(len(STRENGTHS))
    drawn = torch.tensor([[OPERATIONS.index(name), strength] for strength in STRENGTHS], dtype=torch.float64)
    changed = trivial_augment(images, drawn).numpy()
    assert name == "identity" or not np.allclose(changed, images.numpy())
    for image, result, strength in zip(images.numpy(), changed, STRENGTHS, strict=True):
        wanted, within = by_hand(name, image, strength)
        np.testing.assert_allclose(result, wanted, rtol=0, atol=within)


def test_an_image_does_not_depend_on_its_neighbours_and_grey_ones_work():
    for channels in (1, 3):
        images = photos(56, channels).float()
        drawn = augment.draw_operations(56, torch.Generator().manual_seed(1))
        assert len(set(drawn[:, 0].tolist())) == len(OPERATIONS)
        together = trivial_augment(images, drawn)
        assert together.dtype == torch.float32
        assert together.min() >= 0 <= 1 >= together.max()
        alone = torch.cat([trivial_augment(images[k : k + 1], drawn[k : k + 1]) for k in range(56)])
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
        again = augment.draw_operations(56, torch.Generator().manual_seed(1))
        assert drawn.equal(again)
    numbers, strengths = augment.draw_operations(28_000, torch.Generator().manual_seed(0)).T
    assert (torch.bincount(numbers.long()) - 2000).abs().max() < 200
    assert -1 <= strengths.min() < -0.99 < 0.99 < strengths.max() <= 1


def test_tiny_images_can_be_changed():
    assert trivial_augment(torch.rand(14, 3, 2, 1), torch.tensor([[k, 0.5] for k in range(14)])).shape == (14, 3, 2, 1)


@pytest.mark.parametrize("name", ["ce", "camri", "two_sided_logits"])
def test_mixup_mixes_inputs_and_losses_row_by_row(name):
    drawn = torch.Generator().manual_seed(0)
    images, labels = torch.rand(5, 2, 3, 3, generator=drawn), torch.tensor([0, 1, 2, 1, 0])
    shares = augment.draw_shares(5, 0.4, drawn)
    mixed = mixup(images, shares)
    outputs = torch.rand(5, 3, generator=drawn)
    knobs = {"ce": {}, "camri": {"m": 0.3, "s": 8}, "two_sided_logits": {"m": 1.0}}[name]
    criterion = setting(name, () if name == "ce" else 1, **knobs).criterion(3, [1, 1, 1])
    total = 0.0
    for row in range(5):
        share, one = shares[row], outputs[row : row + 1]
        torch.testing.assert_close(mixed[row], share * images[row] + (1 - share) * images[row - 1])
        total += float(share * criterion(one, labels[[row]]) + (1 - share) * criterion(one, labels[[row - 1]]))
    assert float(criterion(outputs, labels, shares)) == pytest.approx(total / 5, rel=1e-6)
    ramped = setting("ce").criterion(3, [1, 1, 1], ramp=2)
    ramped(outputs, labels, shares)
    assert int(ramped.step) == 1  # the second label is no step of its own


def test_shares_follow_beta_and_the_generator_alone():
    shares = augment.draw_shares(20_000, 0.2, torch.Generator().manual_seed(3)).double()
    assert shares.mean().item() == pytest.approx(0.5, abs=0.01)
    assert shares.var().item() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.005)
    assert shares.equal(augment.draw_shares(20_000, 0.2, torch.Generator().manual_seed(3)).double())
