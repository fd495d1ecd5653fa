"""What `mhla info --model` prints, through the function that the program calls."""

import ctypes
import json

import mhla
import pytest


def describe(name, options="", as_json=False):
    library = ctypes.CDLL(str(mhla._library.path))
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    text = ctypes.c_void_p()
    failed = library.mhla_model_info(name.encode(), options.encode(), int(as_json), ctypes.byref(text))
    result = ctypes.string_at(text).decode()
    libc.free(text)
    return failed, result


def test_it_says_what_a_network_is_made_of():
    failed, text = describe("deit-t")
    assert not failed
    assert "5,793,832" in text and "3.052 G a sample" in text
    assert "3,072 parameters (0.053 %)" in text  # twelve matrices of 16 x 16
    assert "blocks x 12" in text and "[1, 3, 224, 224]" in text


@pytest.mark.parametrize("name", ["vlt-t", "dit-xl/2", "dig-s/2", "sana-0.6b", "wan2.1-1.3b-hybrid", "lm-340m"])
def test_the_parts_add_up(name):
    failed, text = describe(name, as_json=True)
    assert not failed
    document = json.loads(text)
    model = mhla.models.create(name, device="meta")
    assert document["parameters"] == sum(p.numel() for p in model.parameters())
    assert document["parameters"] == sum(part["parameters"] for part in document["parts"])
    assert document["macs"] == pytest.approx(sum(part["macs"] for part in document["parts"]))
    alone = sum(p.numel() for path, p in model.named_parameters() if "." not in path)
    assert document["parameters"] == alone + sum(layer["parameters"] for layer in document["layers"])
    assert [each["name"] for each in document["inputs"]] == model.input_names
    by_name = {part["part"]: part for part in document["parts"]}
    for part in ("attention projections", "mlp"):
        assert by_name[part]["parameters"] > 0 and by_name[part]["macs"] > 0


def test_mistakes_come_back_as_text():
    failed, text = describe("deit-q")
    assert failed and "did you mean 'deit-" in text
    assert describe("")[1].splitlines() == mhla.models.names()
    assert json.loads(describe("", as_json=True)[1])["models"] == mhla.models.names()
