"""Decoders, resizing and every operation of RandAugment give the bytes that Pillow gives."""

import io

import numpy
import PIL
import pictures
import pytest
from PIL import Image, ImageEnhance, ImageOps

random = numpy.random.default_rng(0)

FILTERS = {
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def noise(width, height):
    return random.integers(0, 256, (height, width, 3), dtype=numpy.uint8)


def photo(width, height):
    """Smooth, with an edge: closer to what is decoded in practice than noise."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [127 + 120 * numpy.sin(x / 7 + c) * numpy.cos(y / (5 + c)) for c in range(3)]
    array = numpy.stack(planes, axis=2)
    array[height // 3 : height // 2, width // 4 :] = (250, 20, 90)
    return array.clip(0, 255).astype(numpy.uint8)


def flat(width, height):
    return numpy.full((height, width, 3), (3, 200, 128), dtype=numpy.uint8)


def few_values(width, height):
    return random.choice(numpy.array([10, 11, 240], dtype=numpy.uint8), (height, width, 3))


PICTURES = {
    "noise": noise(37, 23),
    "photo": photo(64, 48),
    "flat": flat(9, 5),
    "few values": few_values(20, 31),
    "cifar": photo(32, 32),
    "one pixel": noise(1, 1),
    "one row": noise(40, 1),
    "one column": noise(1, 40),
    "two": noise(2, 2),
}
picture = pytest.mark.parametrize("array", PICTURES.values(), ids=PICTURES.keys())


def saved(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


def rgb(data):
    return numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def same(ours, theirs):
    theirs = numpy.asarray(theirs)
    assert ours.shape == theirs.shape
    assert (ours == theirs).all(), f"{(ours != theirs).sum()} of {ours.size} bytes differ"


# Reading and writing


def grey16():
    return Image.fromarray(random.integers(0, 65536, (13, 17), dtype=numpy.uint16))


def with_alpha(mode):
    base = Image.fromarray(noise(19, 11)).convert(mode)
    base.putalpha(Image.fromarray(random.integers(0, 256, (11, 19), dtype=numpy.uint8)))
    return base


def palette(colours):
    return Image.fromarray(photo(33, 21)).quantize(colours)


PNGS = {
    "rgb": lambda: saved(Image.fromarray(noise(19, 11)), format="PNG"),
    "grey": lambda: saved(Image.fromarray(noise(19, 11)).convert("L"), format="PNG"),
    "black and white": lambda: saved(Image.fromarray(noise(19, 11)).convert("1"), format="PNG"),
    "grey 16": lambda: saved(grey16(), format="PNG"),
    "rgba": lambda: saved(with_alpha("RGB"), format="PNG"),
    "grey and alpha": lambda: saved(with_alpha("L"), format="PNG"),
    "palette 256": lambda: saved(palette(256), format="PNG"),
    "palette 16": lambda: saved(palette(16), format="PNG"),
    "palette 4": lambda: saved(palette(4), format="PNG"),
    "palette 2": lambda: saved(palette(2), format="PNG", bits=1),
    "palette, one transparent": lambda: saved(palette(16), format="PNG", transparency=3),
    "rgb, one transparent": lambda: saved(Image.fromarray(noise(9, 9)), format="PNG", transparency=(1, 2, 3)),
    "grey, one transparent": lambda: saved(Image.fromarray(noise(9, 9)).convert("L"), format="PNG", transparency=7),
}


@pytest.mark.parametrize("make", PNGS.values(), ids=PNGS.keys())
def test_a_png_becomes_what_pillow_makes_of_it(make):
    data = make()
    same(pictures.decode(data), rgb(data))


def raw_png(width, height, depth, colour, rows, interlace=0):
    """Kinds of PNG that Pillow does not write."""
    import struct
    import zlib

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    packed = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "depth, colour, channels",
    [(2, 0, 1), (4, 0, 1), (16, 2, 3), (16, 4, 2), (16, 6, 4), (16, 0, 1), (8, 4, 2)],
)
def test_depths_that_pillow_only_reads(depth, colour, channels):
    width, height = 13, 7
    length = (width * channels * depth + 7) // 8
    data = raw_png(width, height, depth, colour, [random.bytes(length) for _ in range(height)])
    same(pictures.decode(data), rgb(data))


def test_an_interlaced_png():
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    array = noise(21, 17)
    rows = []
    for x, y, dx, dy in passes:
        part = array[y::dy, x::dx]
        rows += [row.tobytes() for row in part if part.size]
    data = raw_png(21, 17, 8, 2, rows, interlace=1)
    same(rgb(data), array)
    same(pictures.decode(data), array)


JPEGS = {
    "4:2:0": dict(),
    "4:4:4": dict(subsampling=0),
    "4:2:2": dict(subsampling=1),
    "coarse": dict(quality=10),
    "progressive": dict(progressive=True),
    "optimised": dict(optimize=True, quality=90),
}


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS.keys())
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(64, 48), (37, 23), (1, 1), (9, 40)])
def test_a_jpeg_becomes_what_pillow_makes_of_it(options, mode, size):
    data = saved(Image.fromarray(photo(*size)).convert(mode), format="JPEG", **options)
    same(pictures.decode(data), rgb(data))


@picture
def test_what_we_write_is_read_back(array):
    same(rgb(pictures.encode(array)), array)
    data = pictures.encode(array, jpeg_quality=90)
    same(pictures.decode(data), rgb(data))
    same(rgb(data), rgb(saved(Image.fromarray(array), format="JPEG", quality=90)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_file_cut_short_is_refused_by_name(kind):
    data = saved(Image.fromarray(noise(40, 40)), format=kind)
    for length in (0, 1, 3, 8, 20, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(pictures.Refused, match="it: "):
            pictures.decode(data[:length])


# Resizing


def comparable(shape, to):
    """Before Pillow 13 rows always came first."""
    first = to[1] < shape[0] and shape[0] - to[1] > 2 * (shape[1] - to[0])
    return not first or int(PIL.__version__.split(".")[0]) >= 13


@pytest.mark.parametrize("name", FILTERS)
@picture
def test_resizing_is_pillows_to_the_last_bit(array, name):
    height, width, _ = array.shape
    for to in [(32, 32), (1, 1), (width, height), (2 * width + 1, height), (width, 3), (7, 2 * height), (224, 5)]:
        if not comparable(array.shape, to):
            continue
        same(pictures.resize(array, *to, name), Image.fromarray(array).resize(to, FILTERS[name]))


@pytest.mark.parametrize("name", FILTERS)
def test_resizing_of_a_box(name):
    array = noise(61, 47)
    for _ in range(20):
        left, right = sorted(random.uniform(0, 61, 2))
        top, bottom = sorted(random.uniform(0, 47, 2))
        box = (left, top, right + 1e-3 if right < 60 else right, bottom)
        to = tuple(int(x) for x in random.integers(1, 90, 2))
        if not comparable(array.shape, to):
            continue
        same(pictures.resize(array, *to, name, box), Image.fromarray(array).resize(to, FILTERS[name], box))


def test_a_box_outside_is_refused():
    array = noise(10, 10)
    for box in [(-1, 0, 5, 5), (0, 0, 11, 5), (5, 0, 5, 5), (0, 6, 5, 5), (0, 0, float("nan"), 5)]:
        with pytest.raises(pictures.Refused, match="box"):
            pictures.resize(array, 4, 4, "box", box)


@pytest.mark.parametrize("size, part", [(224, 0.875), (32, 1.0), (32, 0.9), (31, 0.875), (48, 0.95)])
@pytest.mark.parametrize("shape", [(500, 375), (375, 500), (64, 64), (33, 100), (32, 32)])
def test_the_centre_for_evaluation(size, part, shape):
    """Resize(int) and CenterCrop of torchvision, written out."""
    array = photo(*shape)
    width, height = shape
    shorter = int(numpy.floor(size / part))
    to = (shorter, int(shorter * height / width)) if width <= height else (int(shorter * width / height), shorter)
    if not comparable(array.shape, to):
        pytest.skip("Pillow before 13")
    image = Image.fromarray(array).resize(to, Image.Resampling.BICUBIC)
    left, top = int(round((to[0] - size) / 2.0)), int(round((to[1] - size) / 2.0))
    same(pictures.centre(array, size, part, "bicubic"), image.crop((left, top, left + size, top + size)))


# RandAugment's operations


@picture
def test_operations_without_an_argument(array):
    image = Image.fromarray(array)
    same(pictures.apply(array, "auto_contrast"), ImageOps.autocontrast(image))
    same(pictures.apply(array, "equalize"), ImageOps.equalize(image))
    same(pictures.apply(array, "invert"), ImageOps.invert(image))
    same(pictures.flip(array), ImageOps.mirror(image))


def test_equalize_with_steps_of_one():
    """Few pixels of many values: Pillow's table goes beyond 255 before it is cut off."""
    for count in (256, 260, 300, 509, 511, 600, 1000):
        array = random.integers(0, 256, (1, count, 3), dtype=numpy.uint8)
        same(pictures.apply(array, "equalize"), ImageOps.equalize(Image.fromarray(array)))


@picture
def test_posterize_and_solarize(array):
    image = Image.fromarray(array)
    assert not pictures.apply(array, "posterize", 0).any()  # refused by newer Pillow, black before
    for bits in range(1, 9):
        same(pictures.apply(array, "posterize", bits), ImageOps.posterize(image, bits))
    for threshold in (0, 1, 26, 128, 255, 256):
        same(pictures.apply(array, "solarize", threshold), ImageOps.solarize(image, threshold))
    for add in (0, 1, 99, 110, 128):
        table = [min(255, i + add) if i < 128 else i for i in range(256)]
        same(pictures.apply(array, "solarize_add", add), image.point(table * 3))


ENHANCERS = {
    "colour": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
    "sharpness": ImageEnhance.Sharpness,
}


@pytest.mark.parametrize("op", ENHANCERS)
@picture
def test_enhancing(array, op):
    enhancer = ENHANCERS[op](Image.fromarray(array))
    for factor in (0.0, 0.1, 0.19, 0.5, 0.81, 1.0, 1.3, 1.81, 1.9, 3.7):
        same(pictures.apply(array, op, factor), enhancer.enhance(factor))


FILL = (124, 116, 104)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@picture
def test_geometry(array, name):
    image, resample = Image.fromarray(array), FILTERS[name]
    width, height = image.size

    def moved(*matrix):
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=FILL)

    for part in (-0.45, -0.1, 0.0, 0.033, 0.27, 0.405):
        same(pictures.apply(array, "shear_x", part, name, FILL), moved(1, part, 0, 0, 1, 0))
        same(pictures.apply(array, "shear_y", part, name, FILL), moved(1, 0, 0, part, 1, 0))
        same(pictures.apply(array, "translate_x", part, name, FILL), moved(1, 0, part * width, 0, 1, 0))
        same(pictures.apply(array, "translate_y", part, name, FILL), moved(1, 0, 0, 0, 1, part * height))
    for degrees in (-30.0, -27.3, -0.5, 0.0, 3.3, 26.91, 30.0, 45.0, 133.7):
        rotated = image.rotate(degrees, resample, fillcolor=FILL)
        same(pictures.apply(array, "rotate", degrees, name, FILL), rotated)


def test_normalising():
    array = noise(16, 9)
    mean = numpy.array([0.485, 0.456, 0.406], numpy.float32)
    deviation = numpy.array([0.229, 0.224, 0.225], numpy.float32)
    expected = (array.astype(numpy.float32) / numpy.float32(255) - mean) / deviation
    assert (pictures.normalise(array) == expected.transpose(2, 0, 1)).all()
