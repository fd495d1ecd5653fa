"""The C++ pictures and transforms by ctypes, as numpy arrays [height, width, 3]."""

import ctypes
import os

import numpy
import pytest


def load():
    path = os.environ.get("MHLA_TEST_DATA_LIBRARY")
    if not path:
        pytest.skip("MHLA_TEST_DATA_LIBRARY is not set (ctest sets it)", allow_module_level=True)
    library = ctypes.CDLL(path)
    library.data_error.restype = ctypes.c_char_p
    library.data_op_name.restype = ctypes.c_char_p
    library.data_pixels.restype = ctypes.c_void_p
    library.data_encoded.restype = ctypes.c_void_p
    library.data_encode.restype = ctypes.c_int64
    return library


library = load()


class Refused(Exception):
    pass


def pixels(array):
    array = numpy.ascontiguousarray(array, dtype=numpy.uint8)
    assert array.ndim == 3 and array.shape[2] == 3
    height, width, _ = array.shape
    pixels.keep = array
    return array.ctypes.data_as(ctypes.c_void_p), width, height


def result(failed):
    if failed:
        raise Refused(library.data_error().decode())
    shape = (library.data_height(), library.data_width(), 3)
    count = shape[0] * shape[1] * 3
    raw = ctypes.string_at(library.data_pixels(), count)
    return numpy.frombuffer(raw, numpy.uint8).reshape(shape)


def decode(data):
    return result(library.data_decode(data, ctypes.c_int64(len(data))))


def encode(array, jpeg_quality=0):
    size = library.data_encode(*pixels(array), jpeg_quality)
    return ctypes.string_at(library.data_encoded(), size)


def resize(array, width, height, name, box=None):
    box = box or (0, 0, array.shape[1], array.shape[0])
    return result(library.data_resize(*pixels(array), width, height, name.encode(), (ctypes.c_float * 4)(*box)))


OPS = [library.data_op_name(i).decode() for i in range(15)]


def apply(array, op, argument=0.0, name="bilinear", fill=(0, 0, 0)):
    number = ctypes.c_double(argument)
    return result(library.data_apply(*pixels(array), OPS.index(op), number, name.encode(), (ctypes.c_uint8 * 3)(*fill)))


def flip(array):
    return result(library.data_flip(*pixels(array)))


def centre(array, size, part, name):
    return result(library.data_centre(*pixels(array), size, ctypes.c_double(part), name.encode()))


def normalise(array):
    out = numpy.empty((3, *array.shape[:2]), numpy.float32)
    library.data_normalise(*pixels(array), out.ctypes.data_as(ctypes.c_void_p))
    return out


def draw_crops(width, height, count):
    out = numpy.empty((count, 4), numpy.int32)
    library.data_draw_crops(width, height, ctypes.c_int64(count), out.ctypes.data_as(ctypes.c_void_p))
    return out


def draw_arguments(op, count):
    out = numpy.empty(count, numpy.float64)
    library.data_draw_arguments(OPS.index(op), ctypes.c_int64(count), out.ctypes.data_as(ctypes.c_void_p))
    return out


def draw_erasing(size, count):
    out = numpy.zeros((count, 3, size, size), numpy.float32)
    library.data_draw_erasing(size, ctypes.c_int64(count), out.ctypes.data_as(ctypes.c_void_p))
    return out
