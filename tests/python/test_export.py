"""Networks under the names of other packages: what adopt reads, export writes, bit for bit."""

import json

import mhla
import pytest
import torch
from model_parity import assert_close, shake

# every package of every family, with the attention that the package computes
EXACT = [
    ("tiny-deit", dict(attention="softmax"), "timm"),
    ("tiny-deit", dict(attention="softmax", class_token=False), "timm"),
    ("tiny-dit", dict(attention="softmax"), "facebook"),
    ("tiny-dit", dict(attention="softmax"), "diffusers"),
    ("tiny-sana", dict(attention="linear"), "diffusers"),
    ("tiny-wan", dict(attention="softmax"), "diffusers"),
    ("tiny-lm", dict(attention="softmax"), "transformers"),
    ("tiny-lm", dict(attention="softmax", tied=False), "transformers"),
    ("tiny-lm", dict(attention="mamba2"), "transformers"),
]
# MHLA has more than these packages have
PARTIAL = [
    ("tiny-deit", "timm"),
    ("tiny-dit", "facebook"),
    ("tiny-dit", "diffusers"),
    ("tiny-sana", "diffusers"),
    ("tiny-wan", "diffusers"),
    ("tiny-lm", "transformers"),
]


def made(name, seed=0, **options):
    torch.manual_seed(seed)
    model = mhla.models.create(name, **options)
    fixed = {path: p.clone() for path, p in model.named_parameters() if not p.requires_grad}  # positions of DiT
    shake(model, seed)
    with torch.no_grad():
        for path, value in fixed.items():
            model.get_parameter(path).copy_(value)
    return model


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name, options, package", EXACT, ids=str)
def test_what_is_exported_is_adopted_bit_for_bit(name, options, package):
    model, other = made(name, **options), made(name, seed=1, **options)
    theirs = model.export(package)
    if package != "timm" and (name, package) != ("tiny-dit", "facebook"):  # stock names are our own there
        assert theirs.keys().isdisjoint({k for k in model.state_dict() if "blocks" in k or "attn" in k})
    other.load(theirs)
    got, want = other.state_dict(), model.state_dict()
    kept = {"y_embedder.y_embedding"}  # the empty caption, which diffusers has elsewhere
    assert same({k: v for k, v in got.items() if k not in kept}, {k: v for k, v in want.items() if k not in kept})


@pytest.mark.parametrize("name", [n for n in mhla.models.names() if n.startswith("tiny")])
@pytest.mark.parametrize("attention", ["mhla", "softmax", "linear"])
def test_the_own_names_are_a_round_trip_for_every_family(name, attention, tmp_path):
    model, other = made(name, attention=attention), made(name, seed=1, attention=attention)
    assert model.packages[0] == "upstream"
    assert not same(model.state_dict(), other.state_dict())
    other.load(model.export())
    assert same(model.state_dict(), other.state_dict())
    again = made(name, seed=2, attention=attention)
    (file,) = model.save(tmp_path / "x.safetensors")
    again.load(file)
    assert same(model.state_dict(), again.state_dict())


@pytest.mark.parametrize("name, package", PARTIAL, ids=str)
def test_mhla_goes_to_stock_packages_only_in_part(name, package):
    model = made(name)
    with pytest.raises(RuntimeError, match="attention is mhla here.*partial"):
        model.export(package)
    theirs = model.export(package, partial=True)
    assert not any("mixing" in key or "_attn.conv" in key for key in theirs)
    other = made(name, seed=1)
    if package == "transformers":  # q and k are half as wide: what is there fits, what is not is missing
        other.load(theirs)
        assert torch.equal(other.state_dict()["model.layers.1.attn.q_proj.weight"],
                           model.state_dict()["model.layers.1.attn.q_proj.weight"])
        return
    start = other.state_dict()
    start = {key: value.clone() for key, value in start.items()}
    report = other.load(theirs)
    assert "mixing matrices of" in report and "created" in report
    for key, value in other.state_dict().items():
        added = any(word in key for word in ("_attn.conv", "lepe", "g_norm", "attn.norm.", "attn.q_norm", "attn.k_norm"))
        fixed = added or key == "y_embedder.y_embedding"
        assert torch.equal(value, start[key] if fixed else model.state_dict()[key]), key


def test_the_authors_wan_is_written_under_its_own_names():
    model = made("tiny-wan", attention_options=dict(gate="silu", lepe=3), softmax_every=2)
    names = set(model.export("upstream"))
    assert {"blocks.1.self_attn.block_attn.conv.weight", "blocks.1.self_attn.g.weight",
            "blocks.1.self_attn.lepe.bias", "blocks.1.self_attn.g_norm.weight"} <= names
    assert "blocks.0.self_attn.block_attn.conv.weight" not in names


def test_exported_tensors_share_the_networks_memory():
    model = made("tiny-wan", attention="softmax")
    theirs = model.export("diffusers")
    with torch.no_grad():
        theirs["blocks.0.attn1.to_q.weight"].fill_(7)
    assert (model.state_dict()["blocks.0.self_attn.q.weight"] == 7).all()


def test_learned_positions_have_no_place_in_diffusers():
    model = made("tiny-dit", attention="softmax")
    with torch.no_grad():
        model.get_parameter("pos_embed").add_(0.1)
    assert torch.equal(model.export("facebook")["pos_embed"], model.get_parameter("pos_embed"))
    with pytest.raises(RuntimeError, match="positions are learned here"):
        model.export("diffusers")


def test_unknown_packages_are_errors_that_name_the_known():
    with pytest.raises(RuntimeError, match="did you mean 'diffusers'.*upstream, diffusers"):
        made("tiny-wan").export("difusers")
    assert made("tiny-vlt").packages == ["upstream"]


def test_incomplete_and_contradicting_checkpoints_are_refused():
    model = made("tiny-dit", attention="softmax")
    theirs = model.export("diffusers")
    del theirs["transformer_blocks.1.attn1.to_k.weight"]
    with pytest.raises(RuntimeError, match="no transformer_blocks.1.attn1.to_k.weight"):
        model.load(theirs)
    theirs = model.export("diffusers")
    theirs["blocks.0.attn.qkv.weight"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match="two tensors.*blocks.0.attn.qkv.weight"):
        model.load(theirs)
    theirs = dict(model.export("diffusers"))
    theirs["transformer_blocks.1.norm1.emb.timestep_embedder.linear_1.bias"] = torch.ones(48)
    assert "1 copies in later layers differ" in model.load(theirs)


def test_the_table_of_mamba2s_authors_is_read():
    model, other = made("tiny-lm", attention="mamba2"), made("tiny-lm", seed=1, attention="mamba2")
    theirs = {name.replace("backbone.embeddings.", "backbone.embedding."): value
              for name, value in model.export("transformers").items()}  # fmt: skip
    theirs["lm_head.weight"] = theirs["backbone.embedding.weight"]  # tied, stored all the same
    other.load(theirs)
    assert same(model.state_dict(), other.state_dict())


def test_wrapped_names_are_read():
    model, other = made("tiny-lm"), made("tiny-lm", seed=1)
    report = other.load({f"module.{name}": value for name, value in model.state_dict().items()})
    assert "'module.'" in report
    assert same(model.state_dict(), other.state_dict())


def test_saving_in_another_precision_rounds_as_torch_does(tmp_path):
    from safetensors.torch import load_file

    model = made("tiny-vlt")
    for word, dtype in (("bf16", torch.bfloat16), (torch.float16, torch.float16), ("f64", torch.float64)):
        (file,) = model.save(tmp_path / "x.safetensors", dtype=word)
        for name, value in load_file(file).items():
            want = model.state_dict()[name]
            want = want.to(dtype) if want.is_floating_point() else want
            assert value.dtype == want.dtype and torch.equal(value, want), name
    files = model.save(tmp_path / "y.safetensors", dtype="bf16", max_file_bytes=20000)
    assert len(files) > 3
    with pytest.raises(RuntimeError, match="got 'int8'"):
        model.save(tmp_path / "x.safetensors", dtype="int8")


# What the packages themselves make of it.


def diffusers_model(name, config):
    diffusers = pytest.importorskip("diffusers")
    values = json.loads(config)
    return getattr(diffusers, values.pop("_class_name")).from_config(values).eval()


def loaded(name, **options):
    model = made(name, **options).eval()
    theirs = diffusers_model(name, model.export_config("diffusers"))
    theirs.load_state_dict(model.export("diffusers"))  # strict
    return model, theirs


@torch.no_grad()
def test_diffusers_loads_dit():
    mine, theirs = loaded("tiny-dit", attention="softmax", frequency_shift=1)
    x, t, y = torch.randn(2, 4, 16, 16), torch.tensor([3, 977]), torch.tensor([1, 10])
    assert_close(mine(x, t, y), theirs(x, timestep=t, class_labels=y).sample)


@torch.no_grad()
def test_diffusers_loads_sana():
    mine, theirs = loaded("tiny-sana", attention="linear")
    x, t, text = torch.randn(2, 4, 8, 8), torch.tensor([3, 977]), torch.randn(2, 12, 24)
    mask = torch.ones(2, 12).long()
    mask[1, 7:] = 0
    want = theirs(x, encoder_hidden_states=text, timestep=t, encoder_attention_mask=mask).sample
    assert_close(mine(x, t, text, mask), want)


@torch.no_grad()
def test_diffusers_loads_wan():
    mine, theirs = loaded("tiny-wan", attention="softmax")
    x, t, text = torch.randn(2, 16, 3, 8, 12), torch.tensor([3, 977]), torch.randn(2, 16, 24)
    assert_close(mine(x, t, text), theirs(x, timestep=t, encoder_hidden_states=text).sample)


@torch.no_grad()
@pytest.mark.parametrize("options", [dict(attention="softmax"), dict(attention="softmax", tied=False),
                                     dict(attention="mamba2", eps=1e-5)], ids=str)  # fmt: skip
def test_transformers_loads_the_language_models(options, tmp_path):
    transformers = pytest.importorskip("transformers")
    mine = made("tiny-lm", **options).eval()
    mine.save(tmp_path / "model.safetensors", "transformers", max_file_bytes=100_000)
    (tmp_path / "config.json").write_text(mine.export_config("transformers"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(256, (2, 50))
    assert_close(mine(ids), theirs(ids).logits)
