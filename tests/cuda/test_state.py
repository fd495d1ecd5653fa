"""The streaming form on the device: however a sequence is cut, the outputs are the operator's."""

import dataclasses
import random

import pytest
import torch

import libmhla
import oracle
from cases import Case, make_inputs, sequence
from conftest import DEVICE, SEED
from test_operator import ON_GPU, report, seed_of

LM = Case(sequence(330, block=32), batch=1, heads=2, dk=128, dv=256, mask="causal",
          normalizer="none", feature_map="relu", scale=128**-0.5)
CASES = [
    LM,
    dataclasses.replace(LM, dtype=torch.float16),
    dataclasses.replace(LM, dtype=torch.float32),
    Case(sequence(150, block=7), heads=3, dk=64, mask="causal"),
    Case(sequence(150, block=7), heads=3, dk=33, dv=50, mask="causal", per_head=True,
         normalizer="shared_position", dtype=torch.float32),
    Case(sequence(200, block=96), dk=72, mask="causal", feature_map="elu1", strides="fused"),
    Case(sequence(120, block=5), dk=16, dv=300, mask="causal", separate=True, eps=0.125),
    Case(sequence(130, block=130), dk=40, dv=24, mask="causal", strides="misaligned"),
    Case(sequence(40, block=1), dk=32, mask="causal", normalizer="shared_position"),
    Case(sequence(260, block=20), dk=256, dv=96, mask="causal", dtype=torch.float16),
    Case(sequence(240, block=8), dk=48, dv=64, mask="block_causal"),
    Case(sequence(470, block=2), heads=1, dk=32, dv=64, mask="causal"),  # wide groups of rows
    dataclasses.replace(LM, batch=50, heads=4, layout=sequence(70, block=32)),  # wide thread blocks
    dataclasses.replace(LM, strides="misaligned"),
    dataclasses.replace(LM, layout=sequence(300, block=7), per_head=True),
    dataclasses.replace(LM, layout=sequence(300, block=128)),  # more tokens than one product has
    dataclasses.replace(LM, feature_map="identity"),  # sums that cancel: roundings show most
    Case(sequence(300, block=144), dk=64, mask="causal"),  # too long to be stored in 16 bits
    Case(sequence(200, block=100), dk=64, dv=80, mask="block_causal", separate=True,
         normalizer="shared_position", dtype=torch.float32),
]


def stream_inputs(case, seed):
    inputs = make_inputs(case, seed, DEVICE)
    mixing = inputs.pop("mixing")
    return {n: t for n, t in inputs.items() if n != "d_o"}, mixing, inputs["d_o"]


def piece(tensors, first, count):
    return {name: tensor[:, first:first + count] for name, tensor in tensors.items()}


def walk(case, state, tokens, o, rng, branches=True):
    """Pieces, steps, branches and returns in random order, to the end."""
    unit = case.layout.block[0] if case.mask == "block_causal" else 1
    returns = 0
    while (at := state.tokens) < case.layout.tokens:
        left, kind = case.layout.tokens - at, rng.randrange(12)
        if branches and kind == 0 and returns < 4:
            state.rewind(rng.randrange(at // case.layout.block[0] + 1) * case.layout.block[0])
            returns += 1
        elif branches and kind == 1:
            state = state.fork()
        elif kind < 4:
            count = min(left, unit * rng.randrange(1, 3 * case.layout.block[0] // unit + 2))
            state.read(o[:, at:at + count], **piece(tokens, at, count))
        else:
            for t in range(at, at + min(left, rng.randrange(1, 30))) if unit == 1 else ():
                state.read(o[:, t:t + 1], **piece(tokens, t, 1))
    return state


def check(case, o, inputs):
    truth, parts = oracle.exact(case, inputs)
    rows = oracle.compare(case, {"o": o}, {"o": truth["o"]}, parts, oracle.naive(case, inputs))
    assert rows[0]["ok"], f"\n{case.text(DEVICE)}\n{report(rows)}"


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_pieces_steps_forks_and_returns_agree_with_the_operator(case):
    tokens, mixing, d_o = stream_inputs(case, seed_of(case))
    o = torch.full_like(d_o, float("nan"))
    walk(case, libmhla.State(case.text(DEVICE), mixing), tokens, o, random.Random(SEED))
    check(case, o, {**tokens, "mixing": mixing, "d_o": d_o})


@pytest.mark.parametrize("case", CASES[:5], ids=Case.name)
def test_steps_alone_agree_with_the_operator(case):
    tokens, mixing, d_o = stream_inputs(case, seed_of(case) + 1)
    o = torch.full_like(d_o, float("nan"))
    state = libmhla.State(case.text(DEVICE), mixing)
    for t in range(case.layout.tokens):
        state.read(o[:, t:t + 1], **piece(tokens, t, 1))
    check(case, o, {**tokens, "mixing": mixing, "d_o": d_o})


@pytest.mark.parametrize("case", CASES[:5], ids=Case.name)
def test_saved_states_continue_bit_for_bit(case, tmp_path):
    tokens, mixing, d_o = stream_inputs(case, seed_of(case))
    o = torch.full_like(d_o, float("nan"))
    state = libmhla.State(case.text(DEVICE), mixing)
    half = case.layout.tokens // 2
    rng = random.Random(SEED)
    state = walk(dataclasses.replace(case, layout=sequence(half, block=case.layout.block[0])),
                 state, tokens, o, rng, branches=False)
    state.save(tmp_path / "first")
    other, o_other = libmhla.State.load(tmp_path / "first"), o.clone()
    for t in range(half, case.layout.tokens):
        state.read(o[:, t:t + 1], **piece(tokens, t, 1))
        other.read(o_other[:, t:t + 1], **piece(tokens, t, 1))
    assert torch.equal(o, o_other)
    state.save(tmp_path / "second")
    other.save(tmp_path / "third")
    assert (tmp_path / "second").read_bytes() == (tmp_path / "third").read_bytes()


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_steps_inside_a_block_are_captured_in_a_graph():
    case = LM
    tokens, mixing, d_o = stream_inputs(case, seed_of(case))
    first, count = 5 * 32 + 1, 20
    eager, captured = torch.full_like(d_o, float("nan")), torch.full_like(d_o, float("nan"))
    state = libmhla.State(case.text(DEVICE), mixing)
    state.read(eager[:, :first], **piece(tokens, 0, first))
    branch = state.fork()
    for t in range(first, first + count + 30):
        state.read(eager[:, t:t + 1], **piece(tokens, t, 1))
    branch.read(captured[:, first:first + 1], **piece(tokens, first, 1))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t in range(first + 1, first + count):
            branch.read(captured[:, t:t + 1], **piece(tokens, t, 1))
    graph.replay()
    torch.cuda.synchronize()
    for t in range(first + count, first + count + 30):  # on, with what the graph left
        branch.read(captured[:, t:t + 1], **piece(tokens, t, 1))
    part = slice(first, first + count + 30)
    assert torch.equal(eager[:, part], captured[:, part])


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_the_callers_stream_is_used_by_a_state():
    case = LM
    tokens, mixing, d_o = stream_inputs(case, seed_of(case))
    expected, o = torch.full_like(d_o, float("nan")), torch.full_like(d_o, float("nan"))
    walk(case, libmhla.State(case.text(DEVICE), mixing), tokens, expected, random.Random(1), False)
    late = {name: torch.zeros_like(tensor) for name, tensor in tokens.items()}
    stream = torch.cuda.Stream()
    state = libmhla.State(case.text(DEVICE), mixing)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for name, tensor in late.items():
            tensor.copy_(tokens[name])
        walk(case, state, late, o, random.Random(1), False)
    stream.synchronize()
    assert torch.equal(o, expected)
