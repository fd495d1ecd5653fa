"""Files of the packages safetensors and torch are read by the C++ code, and the reverse."""

import argparse
import json
import os
import pickle
from collections import OrderedDict

import cpp_layers
import pytest
import safetensors
import safetensors.torch
import torch

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32,
    torch.uint16, torch.uint8, torch.bool,
]


@pytest.fixture(scope="module")
def ops():
    return cpp_layers.ops()


def every_dtype():
    tensors = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        values = torch.arange(-3, 3).abs() if "int" in name or dtype is torch.bool else torch.randn(6)
        tensors[f"{name}.matrix"] = values.to(dtype).reshape(2, 3)
        tensors[f"{name}.scalar"] = values.to(dtype)[0].clone()
        tensors[f"{name}.empty"] = torch.empty(2, 0, 3).to(dtype)
    return tensors


def read(ops, path):
    names, values = ops.read_checkpoint(str(path))
    return dict(zip(names, values))


def write(ops, path, tensors, metadata=(), limit=0):
    return ops.write_checkpoint(str(path), list(tensors), list(tensors.values()), list(metadata), limit)


def bits(tensor):
    tensor = tensor.contiguous()
    return tensor.reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def expect_same(got, expected):
    assert sorted(got) == sorted(expected)
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert got[name].shape == tensor.shape, name
        assert bits(got[name]) == bits(tensor), name


def test_files_of_the_safetensors_package_are_read(ops, tmp_path):
    tensors = every_dtype()
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt", "ü": "\n"})
    expect_same(read(ops, tmp_path / "x.safetensors"), tensors)
    assert ops.checkpoint_metadata(str(tmp_path / "x.safetensors")) == ["format", "pt", "ü", "\n"]


def test_an_empty_file_of_the_package_is_read(ops, tmp_path):
    safetensors.torch.save_file({}, tmp_path / "x.safetensors")
    assert read(ops, tmp_path / "x.safetensors") == {}


def test_the_safetensors_package_reads_our_files(ops, tmp_path):
    tensors = every_dtype() | {"ünïcode \" \\": torch.ones(1), "transposed": torch.randn(3, 4).t()}
    write(ops, tmp_path / "x.safetensors", tensors, ["note", "ü\n"])
    expect_same(safetensors.torch.load_file(tmp_path / "x.safetensors"), tensors)
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "ü\n"}
    write(ops, tmp_path / "empty.safetensors", {})
    assert safetensors.torch.load_file(tmp_path / "empty.safetensors") == {}


def test_transformers_and_we_read_each_others_shards(ops, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    assert (tmp_path / "theirs/model.safetensors.index.json").exists()
    expect_same(read(ops, tmp_path / "theirs"), model.state_dict())

    (tmp_path / "ours").mkdir()
    config.save_pretrained(tmp_path / "ours")
    written = write(ops, tmp_path / "ours/model.safetensors", model.state_dict(), limit=4096)
    assert len(written) > 3
    index = json.loads((tmp_path / "ours/model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == sorted(model.state_dict())
    again = LlamaForCausalLM.from_pretrained(tmp_path / "ours")
    expect_same(again.state_dict(), model.state_dict())


def test_files_of_torch_save_are_read(ops, tmp_path):
    tensors = every_dtype() | {"transposed": torch.randn(3, 4).t(), "slice": torch.arange(10)[3:9:2],
                               "parameter": torch.nn.Parameter(torch.randn(2))}
    torch.save(tensors, tmp_path / "x.pth")
    expect_same(read(ops, tmp_path / "x.pth"), {k: v.detach() for k, v in tensors.items()})


def test_a_training_checkpoint_of_torch_is_read(ops, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    ema = OrderedDict((k, v + 1) for k, v in model.state_dict().items())
    torch.save({"model": model.state_dict(), "ema": ema, "opt": optimizer.state_dict(), "epoch": 3,
                "args": argparse.Namespace(lr=0.5, name="tiny", size=torch.Size([2, 3])), "seed": 2**63 + 1,
                "dtype": torch.bfloat16, "set": {1}}, tmp_path / "x.pt")
    got = read(ops, tmp_path / "x.pt")
    for name, tensor in model.state_dict().items():
        assert torch.equal(got[f"model.{name}"], tensor), name
        assert torch.equal(got[f"ema.{name}"], ema[name]), name
    assert torch.equal(got["opt.state.0.exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    sections = ops.checkpoint_sections(str(tmp_path / "x.pt"))
    assert {"model", "ema", "opt.state.0"} <= set(sections)
    words = ops.checkpoint_metadata(str(tmp_path / "x.pt"))
    metadata = dict(zip(words[::2], words[1::2]))
    assert metadata["epoch"] == "3" and metadata["args.lr"] == "0.5" and metadata["args.name"] == "tiny"
    assert metadata["dtype"] == "bf16" and metadata["args.size"] == "[2, 3]"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_is_read(ops, tmp_path, protocol):
    tensors = {"w": torch.randn(2, 2)}
    torch.save({"model": OrderedDict(tensors)}, tmp_path / "x.pth", pickle_protocol=protocol)
    expect_same(read(ops, tmp_path / "x.pth"), {"model.w": tensors["w"]})


def test_a_bare_tensor_and_a_list_get_names(ops, tmp_path):
    torch.save(torch.ones(2), tmp_path / "one.pt")
    assert list(read(ops, tmp_path / "one.pt")) == ["tensor"]
    torch.save([torch.ones(2), {"x": torch.ones(1)}], tmp_path / "list.pt")
    assert list(read(ops, tmp_path / "list.pt")) == ["0", "1.x"]


def refused(ops, path, *parts):
    with pytest.raises(RuntimeError) as error:
        ops.read_checkpoint(str(path))
    for part in parts:
        assert part in str(error.value)
    assert os.path.basename(path) in str(error.value)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_pickle_is_refused_by_name_and_not_run(ops, tmp_path):
    torch.save({"w": torch.ones(1), "x": Evil(str(tmp_path / "owned"))}, tmp_path / "evil.pth")
    refused(ops, tmp_path / "evil.pth", "posix.mkdir", "never run")
    assert not (tmp_path / "owned").exists()


def test_what_is_not_a_state_dict_is_refused_by_name(ops, tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    refused(ops, tmp_path / "module.pth", "torch.nn.modules.linear.Linear", "state_dict()")
    torch.save({"s": torch.eye(3).to_sparse()}, tmp_path / "sparse.pth")
    refused(ops, tmp_path / "sparse.pth", "_rebuild_sparse_tensor")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "script.pt"))
    refused(ops, tmp_path / "script.pt", "TorchScript")
    torch.save({"w": torch.ones(1)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    refused(ops, tmp_path / "old.pth", "before 1.6")
    torch.save({"w": torch.ones(1).expand(1000)}, tmp_path / "expanded.pth")
    refused(ops, tmp_path / "expanded.pth", "'w'", "contiguous()")
    with open(tmp_path / "plain.pkl", "wb") as file:
        pickle.dump({"w": 1}, file)
    refused(ops, tmp_path / "plain.pkl", "bare pickle")


def test_every_truncated_file_is_refused(ops, tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "x.pth")
    safetensors.torch.save_file({"w": torch.ones(3)}, tmp_path / "x.safetensors")
    for name in ("x.pth", "x.safetensors"):
        whole = (tmp_path / name).read_bytes()
        for length in range(0, len(whole), 7):
            (tmp_path / "cut").write_bytes(whole[:length])
            refused(ops, tmp_path / "cut")
