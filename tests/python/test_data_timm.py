"""What chance decides in the augmentations has timm's distributions; its operations are ours."""

import math
import random

import numpy
import pictures
import pytest
import torch
from PIL import Image
from test_replace_timm import import_timm

import_timm()
auto_augment = pytest.importorskip("timm.data.auto_augment")
transforms = pytest.importorskip("timm.data.transforms")
erasing = pytest.importorskip("timm.data.random_erasing")

COUNT = 4000

TIMM = {
    "auto_contrast": "AutoContrast",
    "equalize": "Equalize",
    "invert": "Invert",
    "rotate": "Rotate",
    "posterize": "PosterizeIncreasing",
    "solarize": "SolarizeIncreasing",
    "solarize_add": "SolarizeAdd",
    "colour": "ColorIncreasing",
    "contrast": "ContrastIncreasing",
    "brightness": "BrightnessIncreasing",
    "sharpness": "SharpnessIncreasing",
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateXRel",
    "translate_y": "TranslateYRel",
}


@pytest.fixture(autouse=True)
def seeds():
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def alike(ours, theirs):
    """Kolmogorov and Smirnov's distance, at a level of one in a million."""
    everything = numpy.sort(numpy.concatenate([ours, theirs]))
    at = [numpy.searchsorted(numpy.sort(x), everything, side="right") / len(x) for x in (ours, theirs)]
    bound = math.sqrt(-0.5 * math.log(1e-6 / 2)) * math.sqrt(1 / len(ours) + 1 / len(theirs))
    distance = abs(at[0] - at[1]).max()
    assert distance < bound, f"{distance} of {bound}"


def test_there_are_the_fifteen_operations_of_the_recipe():
    assert sorted(TIMM.values()) == sorted(auto_augment._RAND_INCREASING_TRANSFORMS)
    assert sorted(TIMM) == sorted(pictures.OPS)


@pytest.mark.parametrize("op", TIMM)
def test_arguments(op):
    level_to_argument = auto_augment.LEVEL_TO_ARG[TIMM[op]]
    if level_to_argument is None:
        assert (pictures.draw_arguments(op, 10) == 0).all()
        return
    levels = [min(10.0, max(0.0, random.gauss(9, 0.5))) for _ in range(COUNT)]
    theirs = numpy.array([level_to_argument(level, {})[0] for level in levels], numpy.float64)
    alike(pictures.draw_arguments(op, COUNT), theirs)


@pytest.mark.parametrize("op", TIMM)
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_operations_with_timms_arguments(op, name):
    fill = (124, 116, 104)
    array = numpy.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=numpy.uint8)
    image = Image.fromarray(array)
    level_to_argument = auto_augment.LEVEL_TO_ARG[TIMM[op]]
    for level in (0.0, 3.3, 9.0, 9.7):
        arguments = level_to_argument(level, {}) if level_to_argument else ()
        theirs = auto_augment.NAME_TO_OP[TIMM[op]](
            image, *arguments, fillcolor=fill, resample=getattr(Image.Resampling, name.upper())
        )
        ours = pictures.apply(array, op, float(arguments[0]) if arguments else 0.0, name, fill)
        assert (ours == numpy.asarray(theirs)).all()


@pytest.mark.parametrize("size", [(500, 375), (32, 32), (90, 300)])
def test_random_resized_crops(size):
    image = Image.new("RGB", size)
    drawn = [
        transforms.RandomResizedCropAndInterpolation.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3))
        for _ in range(COUNT)
    ]
    theirs = numpy.array([(x, y, w, h) for y, x, h, w in drawn], numpy.float64)
    ours = pictures.draw_crops(*size, COUNT).astype(numpy.float64)
    for column in range(4):
        alike(ours[:, column], theirs[:, column])
    alike(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    alike(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3])


def test_random_erasing():
    size = 32
    erase = erasing.RandomErasing(probability=0.25, mode="pixel", device="cpu")
    theirs = torch.stack([erase(torch.zeros(3, size, size)) for _ in range(COUNT)]).numpy()
    ours = pictures.draw_erasing(size, COUNT)

    def measures(planes):
        touched = (planes != 0).all(axis=1)
        erased = touched.any(axis=(1, 2))
        rows = touched.any(axis=2).sum(axis=1)
        columns = touched.any(axis=1).sum(axis=1)
        return erased.mean(), rows[erased], columns[erased], planes[planes != 0][:COUNT]

    mine, other = measures(ours), measures(theirs)
    assert abs(mine[0] - 0.25) < 5 * math.sqrt(0.25 * 0.75 / COUNT)
    assert abs(other[0] - 0.25) < 5 * math.sqrt(0.25 * 0.75 / COUNT)
    for a, b in zip(mine[1:], other[1:]):
        alike(a, b)
