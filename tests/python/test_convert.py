"""`mhla convert` with a network in between, as a person types it."""

import json
import os
import subprocess

import mhla
import pytest
import torch
from model_parity import assert_close, shake
from safetensors import safe_open
from safetensors.torch import load_file, save_file

PROGRAM = os.environ.get("MHLA_PROGRAM")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="MHLA_PROGRAM does not say where the program is")


def run(*words, limit=None):
    line = [PROGRAM, "convert", *map(str, words)]
    if limit:
        line = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "-", *line]
    # The program finds the library of its own build.
    environment = {name: value for name, value in os.environ.items() if name != "MHLA_TORCH_LIBRARY"}
    return subprocess.run(line, capture_output=True, text=True, env=environment)


def convert(*words):
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(*words, code=1, parts=(), limit=None):
    done = run(*words, limit=limit)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("mhla: error: ")
    for part in parts:
        assert part in done.stderr, done.stderr
    return done.stderr


def made(name, **options):
    torch.manual_seed(0)
    return shake(mhla.models.create(name, **options))


@pytest.fixture
def deit(tmp_path):
    """A stock DeiT as torch.save writes it, inside a training checkpoint."""
    model = made("tiny-deit", attention="softmax")
    torch.save({"model": dict(model.state_dict()), "epoch": 3}, tmp_path / "deit.pth")
    return model


def test_a_stock_checkpoint_becomes_an_mhla_network(deit, tmp_path):
    done = convert(tmp_path / "deit.pth", tmp_path / "x.safetensors", "--model", "tiny-deit")
    assert done["model"] == "tiny-deit" and done["names"] == "upstream" and done["dtype"] == "f32"
    assert any("2 mixing matrices of 16 blocks created" in note for note in done["notes"])
    assert "blocks.0.attn.piece_attn.conv.weight" in done["kept"] and not done["missing"]
    assert [each["name"] for each in done["reshaped"]] == ["pos_embed"]
    mixed = mhla.models.create("tiny-deit").eval()
    mixed.load(tmp_path / "x.safetensors")
    got = mixed.state_dict()
    assert torch.equal(got["blocks.1.mlp.fc1.weight"], deit.state_dict()["blocks.1.mlp.fc1.weight"])
    text = run(tmp_path / "deit.pth", tmp_path / "x.safetensors", "--model", "tiny-deit").stdout
    assert "network    tiny-deit" in text and "kept as initialised" in text and "created" in text
    first = (tmp_path / "x.safetensors").read_bytes()
    convert(tmp_path / "deit.pth", tmp_path / "y.safetensors", "--model", "tiny-deit")
    assert (tmp_path / "y.safetensors").read_bytes() == first  # what is created is the same each time


def test_a_file_written_here_says_what_it_is(deit, tmp_path):
    stock = tmp_path / "stock.safetensors"
    convert(tmp_path / "deit.pth", stock, "--model", "tiny-deit", "--options", "attention=softmax")
    with safe_open(stock, "pt") as file:
        assert file.metadata()["mhla.model"] == "tiny-deit"
        assert "attention=softmax" in file.metadata()["mhla.options"]
    done = convert(stock, tmp_path / "timm.safetensors", "--to", "timm")
    assert "attention=softmax" in done["options"]
    theirs = load_file(tmp_path / "timm.safetensors")
    assert all(torch.equal(theirs[name], value) for name, value in deit.state_dict().items())


def test_another_resolution_resizes_positions(deit, tmp_path):
    stock, large = tmp_path / "stock.safetensors", tmp_path / "large.safetensors"
    convert(tmp_path / "deit.pth", stock, "--model", "tiny-deit", "--options", "attention=softmax")
    done = convert(stock, large, "--options", "image_size=48")
    (change,) = done["reshaped"]
    assert change["stored"] == [1, 65, 48] and change["wanted"] == [1, 145, 48] and "8x8" in change["how"]
    mine = mhla.models.create("tiny-deit", attention="softmax", image_size=48).eval()
    mine.load(large)
    x = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        assert_close(mine(x), deit(x))  # which resizes them while it runs
    back = convert(large, tmp_path / "wide.safetensors", "--options", "image_size=32x64")
    assert back["reshaped"][0]["wanted"] == [1, 129, 48]
    again = convert(tmp_path / "wide.safetensors", tmp_path / "w2.safetensors", "--options", "image_size=48x96")
    assert again["reshaped"][0]["wanted"] == [1, 289, 48]


def test_another_context_resamples_the_mixing_matrices(tmp_path):
    model = made("tiny-lm")
    model.save(tmp_path / "x.safetensors")
    done = convert(tmp_path / "x.safetensors", tmp_path / "long.safetensors", "--options", "context=128")
    assert len(done["reshaped"]) == 2 and "4 blocks resampled" in done["reshaped"][0]["how"]
    long = mhla.models.create("tiny-lm", context=128).eval()
    long.load(tmp_path / "long.safetensors")
    ids = torch.randint(256, (2, 128))
    with torch.no_grad():
        assert_close(long(ids), model(ids))  # which interpolates them while it runs


def test_precision_stays_unless_told_otherwise(tmp_path):
    model = made("tiny-wan", attention="softmax")
    model.save(tmp_path / "b.safetensors", "diffusers", dtype="bf16")
    done = convert(tmp_path / "b.safetensors", tmp_path / "x.safetensors")
    assert load_file(tmp_path / "x.safetensors").keys() == model.export("diffusers").keys()  # a copy
    done = convert(tmp_path / "b.safetensors", tmp_path / "x.safetensors", "--to", "upstream")
    assert done["dtype"] == "bf16"
    got = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(value, model.state_dict()[name].bfloat16()) for name, value in got.items())
    done = convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors", "--to", "diffusers", "--dtype", "f32")
    got, want = load_file(tmp_path / "y.safetensors"), model.export("diffusers")
    assert all(torch.equal(value, want[name].bfloat16().float()) for name, value in got.items())


def test_f64_is_not_rounded_on_its_way(tmp_path):
    state = mhla.models.create("tiny-dit", attention="softmax").state_dict()
    state = {name: value.double() + 1e-12 for name, value in state.items()}
    save_file(state, tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors", "--model", "tiny-dit", "--options",
            "attention=softmax", "--to", "diffusers")  # fmt: skip
    got = load_file(tmp_path / "y.safetensors")
    assert torch.equal(got["proj_out_2.bias"], state["final_layer.linear.bias"])


def test_the_authors_wan_is_recognised(tmp_path):
    size = dict(depth=4, video_size=(25, 240, 320))
    options = dict(attention_options=dict(gate="silu", lepe=3), softmax_every=3, blocks=(3, 5, 10), **size)
    published = made("tiny-wan", **options)
    torch.save(dict(published.state_dict()), tmp_path / "wan.pth")
    done = convert(tmp_path / "wan.pth", tmp_path / "x.safetensors", "--model", "tiny-wan", "--options", "depth=4",
                   "video_size=25x240x320")  # fmt: skip
    assert "softmax_every=3" in done["options"] and "attention.gate=silu" in done["options"]
    got = load_file(tmp_path / "x.safetensors")
    assert got.keys() == published.state_dict().keys()
    assert all(torch.equal(value, published.state_dict()[name]) for name, value in got.items())


def test_a_folder_gets_what_from_pretrained_needs(tmp_path):
    transformers, diffusers = pytest.importorskip("transformers"), pytest.importorskip("diffusers")
    model = made("tiny-lm", attention="softmax").eval()
    model.save(tmp_path / "x.safetensors")
    (tmp_path / "llama").mkdir()
    done = convert(tmp_path / "x.safetensors", tmp_path / "llama", "--to", "transformers", "--file_size", "100KB")
    assert len(done["files"]) > 2
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    ids = torch.randint(256, (2, 33))
    with torch.no_grad():
        assert_close(model(ids), theirs(ids).logits)
    model = mhla.models.create("tiny-dit", attention="softmax", frequency_shift=1).eval()
    with torch.no_grad():  # the last layers start at zero
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape) if parameter.requires_grad else 0
    model.save(tmp_path / "d.safetensors")
    (tmp_path / "dit").mkdir()
    convert(tmp_path / "d.safetensors", tmp_path / "dit", "--to", "diffusers")
    theirs = diffusers.DiTTransformer2DModel.from_pretrained(tmp_path / "dit").eval()
    x, t, y = torch.randn(2, 4, 16, 16), torch.tensor([3, 977]), torch.tensor([1, 10])
    with torch.no_grad():
        assert_close(model(x, t, y), theirs(x, timestep=t, class_labels=y).sample)
    done = convert(tmp_path / "d.safetensors", tmp_path / "dit", "--to", "diffusers")
    assert any("stays as it is" in note for note in done["notes"])


def test_wrong_checkpoints_get_a_report_and_change_nothing(deit, tmp_path):
    target, source = tmp_path / "x.safetensors", tmp_path / "deit.pth"
    before = set(tmp_path.iterdir())
    refused(source, target, "--model", "tiny-wan", "--options", "attention=softmax",
            parts=["missing in the file", "unexpected in the file", "--partial"])  # fmt: skip
    refused(source, target, "--model", "tiny-dit", "--options", "attention=softmax", parts=["does not match"])
    refused(source, target, "--model", "tiny-deti", code=2, parts=["did you mean 'tiny-deit'"])
    refused(source, target, "--model", "tiny-deit", "--options", "image_sise=3", code=2, parts=["image_size"])
    refused(source, target, "--to", "timm", code=2, parts=["does not say which network", "--model"])
    refused(source, target, "--model", "tiny-deit", "--to", "diffusers", code=2, parts=["'diffusers'", "timm"])
    refused(source, target, "--model", "tiny-deit", "--to", "timm", code=2, parts=["attention is mhla here"])
    refused(source, target, "--model", "tiny-deit", "--section", "ema", code=2, parts=["'ema'", "'model'"])
    refused(source, target, "--model", "tiny-deit", "--dtype", "int8", code=2, parts=["'int8'"])
    refused(source, tmp_path / "none/x.safetensors", "--model", "tiny-deit", parts=["No such file"])
    refused(source, target, "--model", "tiny-deit", limit=1, parts=["File too large"])
    assert set(tmp_path.iterdir()) == before


def test_a_network_much_larger_than_its_file_is_not_made(tmp_path):
    state = made("tiny-deit").state_dict()
    said = {"mhla.model": "tiny-deit", "mhla.options": "dim=3000000"}
    save_file(state, tmp_path / "in.safetensors", metadata=said)
    refused(tmp_path / "in.safetensors", tmp_path / "x.safetensors", "--to", "upstream",
            parts=["tiny-deit has", "65658 elements"])  # fmt: skip
    refused(tmp_path / "in.safetensors", tmp_path / "x.safetensors", "--model", "wan2.1-1.3b",
            parts=["1419675640 parameters"])  # fmt: skip


def test_missing_tensors_are_named_and_partial_goes_on(deit, tmp_path):
    state = {name: value for name, value in deit.state_dict().items() if name != "blocks.1.mlp.fc2.bias"}
    save_file(state, tmp_path / "in.safetensors")
    words = tmp_path / "in.safetensors", tmp_path / "x.safetensors", "--model", "tiny-deit"
    refused(*words, parts=["'blocks.1.mlp.fc2.bias'"])
    assert convert(*words, "--partial")["missing"] == ["blocks.1.mlp.fc2.bias"]
    # A stock checkpoint may lack what MHLA adds, not its projections.
    state = {name: value for name, value in deit.state_dict().items() if ".attn.proj." not in name}
    save_file(state, tmp_path / "in.safetensors")
    refused(*words, parts=["'blocks.0.attn.to_out.0.weight'"])


def test_it_does_not_write_over_its_input(tmp_path):
    made("tiny-lm").save(tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    refused(tmp_path / "x.safetensors", tmp_path / "x.safetensors", "--options", "context=128", code=2,
            parts=["being read"])  # fmt: skip
    assert (tmp_path / "x.safetensors").read_bytes() == before
