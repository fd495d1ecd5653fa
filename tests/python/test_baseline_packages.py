"""The functions against code that nobody here wrote: flash-linear-attention and transformers."""

from __future__ import annotations

from inspect import unwrap

import mhla
import pytest
import torch
import torch.nn.functional as F

ops = torch.ops.mhla
# They compute in f32 whatever they are given, in another order than we do.
F32 = dict(rtol=2e-4, atol=2e-4)


def package(name):
    return pytest.importorskip(name, reason=f"{name} is not installed (requirements-test.txt)")


def inputs(tokens, *, heads=3, dk=16, dv=24):
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(2, tokens, heads, d) for d in (dk, dk, dv, dk)] + [(2, tokens, heads)] * 2
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def assert_same(ours, theirs, leaves):
    torch.testing.assert_close(ours, theirs, **F32)
    weight = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    ours, theirs = (torch.autograd.grad((o * weight).sum(), leaves, retain_graph=True) for o in (ours, theirs))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, **F32)


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_gla_equals_that_of_flash_linear_attention(tokens):
    theirs = package("fla.ops.gla.naive").naive_recurrent_gla
    q, k, v, x, _, _ = inputs(tokens)
    g = F.logsigmoid(x) / 16
    ours, state = ops.gla(q, k, v, g)
    expected, after = theirs(q, k, v, g, output_final_state=True)
    torch.testing.assert_close(state, after, **F32)
    assert_same(ours, expected, [q, k, v, x])


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_simple_gla_equals_that_of_flash_linear_attention(tokens):
    theirs = package("fla.ops.simple_gla.naive")
    q, k, v, _, x, _ = inputs(tokens)
    g = F.logsigmoid(x)
    ours, state = ops.simple_gla(q, k, v, g)
    expected, after = theirs.naive_recurrent_simple_gla(q, k, v, g)
    torch.testing.assert_close(state, after, **F32)
    assert_same(ours, expected, [q, k, v, x])
    torch.testing.assert_close(ours, theirs.naive_parallel_simple_gla(q, k, v, g)[0], **F32)


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_retention_equals_that_of_flash_linear_attention(tokens):
    theirs = package("fla.ops.retention.naive").naive_retention
    q, k, v, *_ = inputs(tokens)
    expected = theirs(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
    assert_same(ops.retention(q, k, v)[0], expected, [q, k, v])


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_causal_linear_attention_equals_that_of_flash_linear_attention(tokens):
    theirs = package("fla.ops.linear_attn.naive").naive_recurrent_linear_attn
    q, k, v, *_ = inputs(tokens)
    expected = theirs(q, k, v)
    expected = expected[0] if isinstance(expected, tuple) else expected
    assert_same(ops.causal_linear_attention(q, k, v)[0], expected, [q, k, v])


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_the_gated_delta_rule_equals_that_of_flash_linear_attention(tokens):
    theirs = package("fla.ops.gated_delta_rule.naive")
    q, k, v, _, x, y = inputs(tokens)
    unit, g, beta = F.normalize(k, dim=-1), F.logsigmoid(x), y.sigmoid()
    ours, state = ops.gated_delta_rule(q, unit, v, g, beta)
    expected, after = theirs.naive_recurrent_gated_delta_rule(q, unit, v, beta, g, output_final_state=True)
    torch.testing.assert_close(state, after, **F32)
    assert_same(ours, expected, [q, k, v, x, y])
    chunked, _ = theirs.naive_chunk_gated_delta_rule(q, unit, v, g, beta)
    torch.testing.assert_close(ours, chunked, **F32)


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_the_gated_delta_rule_equals_that_of_qwen3_next(tokens):
    modeling = package("transformers.models.qwen3_next.modeling_qwen3_next")
    theirs = unwrap(modeling.torch_chunk_gated_delta_rule)  # around it: a kernel for GPUs, where there is one
    q, k, v, _, x, y = inputs(tokens)
    g, beta = F.logsigmoid(x), y.sigmoid()
    ours, state = ops.gated_delta_rule(ops.unit_norm(q), ops.unit_norm(k), v, g, beta)
    expected, after = theirs(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(state, after, **F32)
    assert_same(ours, expected, [q, k, v, x, y])


@pytest.mark.parametrize("tokens", [1, 63, 300])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_mamba2_layer_equals_that_of_transformers(tokens, groups):
    modeling = package("transformers.models.mamba2.modeling_mamba2")
    config = package("transformers").Mamba2Config(
        num_heads=4, head_dim=16, hidden_size=32, state_size=24, expand=2, n_groups=groups, chunk_size=32,
        num_hidden_layers=1, use_bias=False, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = modeling.Mamba2Mixer(config, layer_idx=0).eval()
    ours = mhla.nn.make_attention("mamba2", dim=32, heads=4, state_size=24, groups=groups)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, tokens, 32, requires_grad=True)
    assert_same(ours(x), theirs(x), [x])


def test_the_rotary_of_language_layers_equals_that_of_transformers():
    modeling = package("transformers.models.llama.modeling_llama")
    config = package("transformers").LlamaConfig(hidden_size=32, num_attention_heads=2, head_dim=16)
    q = torch.randn(1, 9, 2, 16)
    cos, sin = modeling.LlamaRotaryEmbedding(config)(q, torch.arange(9)[None])
    expected, _ = modeling.apply_rotary_pos_emb(q.transpose(1, 2), q.transpose(1, 2), cos, sin)
    torch.testing.assert_close(ops.rotary(q), expected.transpose(1, 2))
