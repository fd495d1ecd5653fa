"""Every implementation of a device against the f64 oracle, on fresh inputs and hostile memory.

A result passes when its error is at most twice that of the naive same-precision PyTorch
computation. Errors of few numbers say little (of two errors of one size one is twice the other in
three of ten draws), so a d_mixing of few is judged by several draws together.
A case that an implementation refuses is reported as refused, never as passed.
"""

import dataclasses
import functools
import zlib

import pytest
import torch

import libmhla
import oracle
from cases import Case, grid, make_inputs, sequence
from conftest import DEVICE, SEED
from guard import Guarded, GuardedWorkspace, strides_like
from selection import ALL, REPEATED, unique

ON_GPU = DEVICE != "cpu"
IMPLEMENTATIONS = libmhla.implementations(DEVICE)


def plan_or_refuse(case, implementation):
    try:
        return libmhla.plan(case.text(DEVICE), implementation)
    except libmhla.Refused as refusal:
        pytest.skip(f"refused: {libmhla.reason(refusal, implementation)}")


def seed_of(case):
    return (SEED + zlib.crc32(case.name().encode())) % 2**31


ENOUGH = 40  # numbers; docs/verification.md, Other seeds


def draws_of(case):
    rows, columns = len(case.layout.boxes), len(case.keys.boxes)
    weights = rows * columns if case.mask == "none" else rows * (rows + 1) // 2
    return -(-ENOUGH // weights)


@functools.lru_cache(maxsize=4)
def prepared(case, tf32):
    """Per draw its inputs, f64 truth and parts, naive results: shared by the implementations."""
    def draw(index):
        inputs = make_inputs(case, seed_of(case) + index, DEVICE)
        truth, parts = oracle.exact(case, inputs)
        return inputs, truth, parts, oracle.naive(case, inputs, tf32)

    return [draw(index) for index in range(draws_of(case))]


def operands(inputs):
    return {name: tensor for name, tensor in inputs.items() if name != "d_o"}


def gradient_names(case):
    return ["d_q", "d_k", "d_v", "d_mixing"] + ["d_q_den", "d_k_den"] * case.separate


def guarded_run(case, plan, inputs):
    """Forward and backward into poisoned, guarded memory; returns o and the gradients."""
    def guarded(like, kind):
        strides = strides_like(kind, like.shape) if like.dim() == 4 else None
        return Guarded(tuple(like.shape), like.dtype, DEVICE, strides)

    before = {name: tensor.clone() for name, tensor in inputs.items()}
    o = guarded(inputs["d_o"], "contiguous" if case.strides == "fused" else case.strides)
    space = GuardedWorkspace(plan.forward_workspace, DEVICE)
    libmhla.forward(plan, **operands(inputs), o=o.tensor, space=space.space)
    space.check()
    o.check("o")

    outputs = {name: guarded(inputs[name[2:]], case.strides) for name in gradient_names(case)}
    space = GuardedWorkspace(plan.backward_workspace, DEVICE)
    libmhla.backward(plan, **inputs, o=o.tensor, space=space.space,
                     gradients={name: output.tensor for name, output in outputs.items()})
    space.check()
    for name, output in outputs.items():
        output.check(name)
    o.check("o after backward")
    for name, tensor in inputs.items():
        assert torch.equal(tensor, before[name]), f"{name}: an input was written"
    return {"o": o.tensor, **{name: output.tensor for name, output in outputs.items()}}


def report(rows):
    lines = [f"{'result':10} {'rms error':>10} {'naive':>10} {'limit':>10} {'max error':>10}"
             f" {'naive':>10} {'limit':>10} {'rms value':>10}"]
    for r in rows:
        lines.append(f"{r['name']:10} {r['rms']:10.3g} {r['naive_rms']:10.3g}"
                     f" {r['limit_rms']:10.3g}"
                     f" {r['max']:10.3g} {r['naive_max']:10.3g} {r['limit_max']:10.3g}"
                     f" {r['reference_rms']:10.3g}{'' if r['ok'] else '   <- too large'}")
    return "\n".join(lines)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)  # varies fastest: they share a truth
@pytest.mark.parametrize("case", ALL, ids=Case.name)
def test_error_is_within_twice_the_naive_error(case, implementation, record_property):
    plan = plan_or_refuse(case, implementation)
    assert plan.implementation == implementation
    rows = oracle.compare_draws(case, [
        (guarded_run(case, plan, inputs), *rest)
        for inputs, *rest in prepared(case, "tf32" in implementation)])
    wrong = [row for row in rows if not row["ok"]]
    record_property("worst", "; ".join(
        f"{row['name']} {max(row['rms'] / row['limit_rms'], row['max'] / row['limit_max']):.3g}x"
        for row in wrong) + " of the limit")
    assert not wrong, f"\n{case.text(DEVICE)}\n{report(rows)}"


@pytest.mark.parametrize("case", REPEATED, ids=Case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_repeated_calls_agree_bit_by_bit(case, implementation):
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    first_o = libmhla.forward(plan, **operands(inputs))
    first = libmhla.backward(plan, **inputs, o=first_o)
    for _ in range(5 if ON_GPU else 2):
        o = libmhla.forward(plan, **operands(inputs))
        assert torch.equal(o, first_o)
        again = libmhla.backward(plan, **inputs, o=o)
        for name, value in first.items():
            assert torch.equal(value, again[name]), name


@pytest.mark.parametrize("case", unique(REPEATED[:2] + REPEATED[-1:]), ids=Case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_can_be_left_out(case, implementation):
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    o = libmhla.forward(plan, **operands(inputs))
    whole = libmhla.backward(plan, **inputs, o=o)
    for name, value in whole.items():
        alone = {name: torch.full_like(value, float("nan"))}
        libmhla.backward(plan, **inputs, o=o, gradients=alone)
        torch.testing.assert_close(alone[name], value, rtol=1e-2, atol=1e-3 * value.abs().max())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_constant_values_are_preserved_by_the_exact_normalizer(implementation):
    case = Case(grid((14, 14), block=(4, 4)), heads=3)
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    inputs["v"] = torch.ones_like(inputs["v"])
    o = libmhla.forward(plan, **operands(inputs))
    # Numerator and denominator must come from equally rounded summaries (kernels.md, Precision).
    assert (o.double() - 1).abs().max() <= torch.finfo(case.dtype).eps


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("side", (4, 8))
def test_rows_without_a_denominator_pass_on_only_what_others_read(side, implementation):
    # Block 0 weighs nothing, so its rows have no denominator; those of others read its q . z.
    case = Case(grid((4 * side, 4 * side), block=(side, side)), feature_map="relu", eps=0.0,
                normalizer="shared_position")
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    inputs["mixing"][0] = 0
    truth, parts = oracle.exact(case, inputs)
    ours = guarded_run(case, plan, inputs)
    rows = oracle.compare(case, ours, truth, parts, oracle.naive(case, inputs))
    assert all(row["ok"] for row in rows), report(rows)
    block = torch.arange(4 * side * side).view(-1, 4 * side)[:side, :side].flatten()
    assert (ours["o"][:, block] == 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", (100, 200, 300))
@pytest.mark.parametrize("size", (2.0**-10, 2.0**9))
def test_f16_scores_outside_its_range_cancel_with_their_sum(size, tokens, implementation):
    case = Case(sequence(tokens, block=16), feature_map="relu", dtype=torch.float16, heads=3)
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    expected, _ = oracle.exact(case, inputs)
    inputs["q"], inputs["k"] = inputs["q"] * size, inputs["k"] * size  # the quotient stays
    o = libmhla.forward(plan, **operands(inputs)).double()
    error = (o - expected["o"]).square().mean().sqrt() / expected["o"].square().mean().sqrt()
    assert error <= 4 * torch.finfo(case.dtype).eps


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_sequence_never_reads_another(implementation):
    case = Case(sequence((64, 37, 96), block=32), batch=1)
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    o = libmhla.forward(plan, **operands(inputs))
    gradients = libmhla.backward(plan, **inputs, o=o)
    for name in ("q", "k", "v", "d_o"):
        inputs[name] = inputs[name].clone()
        inputs[name][:, 64:64 + 37] = float("nan")
    poisoned = libmhla.forward(plan, **operands(inputs))
    d_poisoned = libmhla.backward(plan, **inputs, o=poisoned)
    for name, (ours, other) in {"o": (o, poisoned),
                                **{n: (gradients[n], d_poisoned[n])
                                   for n in ("d_q", "d_k", "d_v")}}.items():
        for part in (slice(0, 64), slice(64 + 37, None)):
            assert torch.equal(ours[:, part], other[:, part]), name


@pytest.mark.parametrize("case", REPEATED, ids=Case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_a_captured_graph_replays_what_eager_computes(case, implementation):
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    other = make_inputs(case, seed_of(case) + 1, DEVICE)
    o = libmhla.forward(plan, **operands(inputs))
    gradients = libmhla.backward(plan, **inputs, o=o)
    spaces = [libmhla.workspace(size, DEVICE)
              for size in (plan.forward_workspace, plan.backward_workspace)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        libmhla.forward(plan, **operands(inputs), o=o, space=spaces[0])
        libmhla.backward(plan, **inputs, o=o, gradients=gradients, space=spaces[1])
    for values in (other, inputs):  # new values in the captured buffers, twice
        values = {name: tensor.clone() for name, tensor in values.items()}
        eager_o = libmhla.forward(plan, **operands(values))
        eager = libmhla.backward(plan, **values, o=eager_o)
        for name, tensor in inputs.items():
            tensor.copy_(values[name])
        for output in (o, *gradients.values()):
            output.fill_(float("nan"))
        graph.replay()
        assert torch.equal(o, eager_o)
        for name, value in eager.items():
            assert torch.equal(gradients[name], value), name


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_the_callers_stream_is_used(implementation):
    case = REPEATED[0]
    plan = plan_or_refuse(case, implementation)
    inputs = make_inputs(case, seed_of(case), DEVICE)
    expected = libmhla.forward(plan, **operands(inputs))
    late = {name: torch.zeros_like(tensor) for name, tensor in operands(inputs).items()}
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # about 10 ms: work on another stream would run ahead
        for name, tensor in late.items():
            tensor.copy_(inputs[name])
        o = libmhla.forward(plan, **late)
    stream.synchronize()
    assert torch.equal(o, expected)


def big_enough():
    return ON_GPU and torch.cuda.mem_get_info()[0] >= 60 * 2**30


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.skipif(not big_enough(), reason="needs a GPU with 60 GB free")
def test_offsets_past_two_to_the_31_elements(implementation):
    # q, k, v, o and the gradients have 2.16e9 elements each, q, k, v as slices of one tensor.
    case = Case(grid((16, 16), block=(4, 4)), batch=11_000, heads=12, dk=64, strides="fused")
    plan = plan_or_refuse(case, implementation)
    bytes_needed = 13 * 11_000 * 256 * 12 * 64 * 2 + plan.backward_workspace
    if bytes_needed > 0.95 * torch.cuda.mem_get_info()[0]:
        pytest.skip(f"needs {bytes_needed / 2**30:.0f} GiB, most of it workspace")
    generator = torch.Generator(device=DEVICE).manual_seed(seed_of(case))
    qkv = torch.empty(case.batch, 256, 3, 12, 64, dtype=case.dtype, device=DEVICE)
    qkv.normal_(generator=generator)
    d_o = torch.empty(case.batch, 256, 12, 64, dtype=case.dtype, device=DEVICE)
    d_o.normal_(generator=generator)
    mixing = torch.rand(16, 16, generator=generator, device=DEVICE)
    inputs = dict(q=qkv[:, :, 0], k=qkv[:, :, 1], v=qkv[:, :, 2], mixing=mixing)
    o = libmhla.forward(plan, **inputs)
    d_qkv = torch.full_like(qkv, float("nan"))
    gradients = dict(d_q=d_qkv[:, :, 0], d_k=d_qkv[:, :, 1], d_v=d_qkv[:, :, 2],
                     d_mixing=torch.full_like(mixing, float("nan")))
    libmhla.backward(plan, **inputs, o=o, d_o=d_o, gradients=gradients)
    inputs["d_o"] = d_o
    for start in (0, case.batch // 2, case.batch - 2):
        piece = {n: t if n == "mixing" else t[start:start + 2] for n, t in inputs.items()}
        small = dataclasses.replace(case, batch=2)
        truth, parts = oracle.exact(small, piece)
        plain = oracle.naive(small, piece)
        ours = {"o": o[start:start + 2],
                **{n: g[start:start + 2] for n, g in gradients.items() if n != "d_mixing"}}
        del truth["d_mixing"]  # a sum over the whole batch
        rows = oracle.compare(small, ours, truth, parts, plain)
        assert all(row["ok"] for row in rows), f"batch {start}\n{report(rows)}"
    # The sum over the batch: twice the naive error again, the truth summed slice by slice in f64.
    truth, plain = 0, 0
    for start in range(0, case.batch, 250):
        piece = {n: t if n == "mixing" else t[start:start + 250] for n, t in inputs.items()}
        part_case = dataclasses.replace(case, batch=250)
        truth = truth + oracle.run(oracle.blockwise, part_case, piece, torch.float64)[0]["d_mixing"]
        plain = plain + oracle.naive(part_case, piece)["d_mixing"].double()
    error = (gradients["d_mixing"].double() - truth).square().mean().sqrt()
    naive_error = (plain - truth).square().mean().sqrt()
    assert error <= 2 * naive_error + 2**-10 * truth.square().mean().sqrt()
