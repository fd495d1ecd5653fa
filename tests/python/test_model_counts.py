"""Parameters and multiply-adds of every network: the numbers of spec.md section 2."""

import mhla
import pytest
import torch

PLAIN = dict(lepe=0, inner_norm=False, qk_norm="none")  # the operator alone
DIT_GATE = dict(gate="silu", gate_bias=False)

# name, options, options of the attention, parameters
PARAMETERS = [
    ("deit-t", {}, {}, 5_793_832),
    ("deit-s", {}, {}, 22_200_424),
    ("deit-b", {}, {}, 86_864_104),
    ("deit-t", {}, dict(lepe=3), 5_756_968),
    ("deit-s", {}, dict(lepe=3), 22_126_696),
    ("deit-b", {}, dict(lepe=3), 86_716_648),
    ("deit-t", {}, PLAIN, 5_724_712),
    ("deit-s", {}, PLAIN, 22_062_184),
    ("deit-b", {}, PLAIN, 86_587_624),
    ("deit-t", dict(attention="softmax"), {}, 5_717_416),
    ("deit-s", dict(attention="softmax"), {}, 22_050_664),
    ("deit-b", dict(attention="softmax"), {}, 86_567_656),
    ("deit-t", dict(attention="linear"), {}, 5_709_928),
    ("deit-s", dict(attention="linear"), {}, 22_035_688),
    ("deit-b", dict(attention="linear"), {}, 86_537_704),
    ("vlt-t", dict(attention="rala"), {}, 14_897_768),
    ("vlt-s", dict(attention="rala"), {}, 25_591_208),
    ("vlt-t", dict(attention="mala"), {}, 16_449_128),
    ("vlt-s", dict(attention="mala"), {}, 27_142_568),
    ("vlt-t", {}, {}, 16_454_442),
    ("vlt-s", {}, {}, 27_151_051),
    ("dit-s/2", dict(attention="softmax"), {}, 32_963_360),
    ("dit-b/2", dict(attention="softmax"), {}, 130_512_416),
    ("dit-l/2", dict(attention="softmax"), {}, 458_102_816),
    ("dit-xl/2", dict(attention="softmax"), {}, 675_129_632),
    ("dit-s/2", {}, {}, 33_021_728),
    ("dit-b/2", {}, {}, 130_626_080),
    ("dit-l/2", {}, {}, 458_403_872),
    ("dit-xl/2", {}, {}, 675_523_872),
    ("dit-s/2", {}, DIT_GATE, 34_791_200),
    ("dit-b/2", {}, DIT_GATE, 137_703_968),
    ("dit-l/2", {}, DIT_GATE, 483_569_696),
    ("dit-xl/2", {}, DIT_GATE, 712_682_784),
    ("sana-0.6b", dict(attention="linear"), {}, 591_747_872),
    ("wan2.1-1.3b", dict(attention="softmax"), {}, 1_418_996_800),
    ("wan2.1-1.3b", {}, {}, 1_419_675_640),
    ("wan2.1-1.3b", {}, dict(gate="silu"), 1_490_500_600),
    ("wan2.1-1.3b-hybrid", {}, {}, 1_419_449_360),
    ("wan2.1-1.3b-hybrid", {}, dict(gate="silu"), 1_466_666_000),
    ("lm-340m", {}, {}, 341_130_240),
    ("lm-340m", dict(attention="gla"), {}, 341_707_776),
    ("lm-340m", dict(attention="softmax"), {}, 341_099_520),
    ("lm-340m", dict(attention="mamba2"), {}, 349_619_712),
]


def made(name, options, attention):
    return mhla.models.create(name, device="meta", attention_options=attention, **options)


@pytest.mark.parametrize("name,options,attention,count", PARAMETERS, ids=str)
def test_parameters_are_those_of_the_paper(name, options, attention, count):
    model = made(name, options, attention)
    assert sum(p.numel() for p in model.parameters()) == count
    assert all(p.is_meta for p in model.parameters())


# name, options, multiply-adds of one sample in 10^9
MACS = [
    ("deit-t", {}, 1.525),
    ("deit-s", {}, 5.768),
    ("deit-t", dict(padding=0), 1.176),
    ("deit-s", dict(padding=0), 4.434),
    ("vlt-t", {}, 2.66),
    ("vlt-s", {}, 4.94),
    ("vlt-t", dict(attention="rala"), 2.61),
    ("vlt-s", dict(attention="rala"), 4.88),
    ("dit-s/2", dict(attention="softmax"), 6.05),
    ("dit-s/2", {}, 5.68),
    ("dit-b/2", dict(attention="softmax"), 22.99),
    ("dit-b/2", {}, 22.26),
    ("dit-l/2", dict(attention="softmax"), 80.7),
    ("dit-l/2", {}, 78.7),
    ("dit-xl/2", dict(attention="softmax"), 118.6),
    ("dit-xl/2", {}, 116.2),
    ("dit-s/2", dict(attention="softmax", image_size=512), 31.4),
    ("dit-s/2", dict(image_size=512), 22.5),
    ("dit-b/2", dict(attention="softmax", image_size=512), 106.3),
    ("dit-b/2", dict(image_size=512), 88.5),
    ("dit-l/2", dict(attention="softmax", image_size=512), 360.9),
    ("dit-l/2", dict(image_size=512), 313.2),
    ("dit-xl/2", dict(attention="softmax", image_size=512), 524.5),
    ("dit-xl/2", dict(image_size=512), 462.5),
    ("dit-s/2", dict(attention="softmax", image_size=4096), 40974),
    ("dit-s/2", dict(image_size=4096), 1433),
    ("wan2.1-1.3b", dict(attention="softmax"), 132_400),
    ("wan2.1-1.3b", {}, 41_500),
    ("wan2.1-1.3b", dict(attention_options=dict(gate="silu")), 43_700),
    ("wan2.1-1.3b-hybrid", {}, 71_800),
]


@pytest.mark.parametrize("name,options,giga", MACS, ids=str)
def test_multiply_adds_are_those_of_the_paper_within_a_percent(name, options, giga):
    parts = mhla.models.create(name, device="meta", **options).cost()
    total = sum(part["macs"] for part in parts.values()) / 1e9
    assert total == pytest.approx(giga, rel=0.01), parts


TINY = ["tiny-deit", "tiny-vlt", "tiny-dit", "tiny-dig", "tiny-lm", "tiny-sana", "tiny-wan"]


def run_counted(model, inputs):
    """What PyTorch's own counter sees, with the operator's cost by its formula (spec 1.2)."""
    from torch.utils.flop_counter import FlopCounterMode

    counted = 0

    class Mixed(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal counted
            if function is torch.ops.mhla.forward.default:
                q, _, v, mixing = args[:4]
                batch, tokens, heads, dk = q.shape
                dv, options = v.shape[3], args[8]
                blocks = mixing.shape[-1]
                causal = "mask=causal" in options
                counted += batch * heads * (2 * tokens * dk * dv)
                counted += batch * heads * dk * dv * (blocks * (blocks - 1) // 2 if causal else blocks**2)
                if causal:
                    counted += batch * heads * (dk + dv) * tokens * (tokens // blocks + 1) // 2
            if "_for_cpu" in str(function):  # PyTorch's counter knows softmax attention of GPUs only
                q, k, v = args[:3]
                counted += q.shape[:3].numel() * k.shape[2] * (k.shape[3] + v.shape[3])
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), FlopCounterMode(display=False) as flops, Mixed():
        model(*inputs)
    return counted + flops.get_total_flops() / 2


@pytest.mark.parametrize("attention", ["mhla", "softmax", "linear"])
@pytest.mark.parametrize("name", TINY)
def test_the_cost_sheet_agrees_with_what_runs(name, attention):
    model = mhla.models.create(name, attention=attention).eval()
    told = sum(part["macs"] for part in model.cost().values())
    seen = run_counted(model, model.example_inputs(1))
    slack = 0.03
    if name == "tiny-lm":  # the products of a chunk are computed whole, those of a triangle counted
        slack = 0.1
    assert told == pytest.approx(seen, rel=slack)


@pytest.mark.parametrize("name", TINY)
def test_what_the_backward_pass_keeps_is_about_what_the_sheet_says(name):
    model = mhla.models.create(name, attention="mhla").train()
    inputs = model.example_inputs(1)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = t  # alive, so that no address comes twice
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(*inputs)
    seen = sum(t.untyped_storage().nbytes() for t in kept.values()) / 4
    told = sum(part["kept"] for part in model.cost().values())
    assert out.requires_grad
    assert 0.5 < told / seen < 1.5
