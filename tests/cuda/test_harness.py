"""The harness itself: two oracles agree, guards and limits notice what they are there for."""

import dataclasses
import itertools
import os
import subprocess
import sys

import pytest
import torch

import oracle
import races
from cases import Case, grid, make_inputs, sequence
from conftest import DEVICE, SEED
from guard import Guarded, GuardedWorkspace

sys.path.append(os.path.join(os.path.dirname(__file__), "../../bench/cuda_support"))
import peers
from shapes import SHAPES

LAYOUTS = [sequence(50, block=16), grid((7, 9), block=(3, 4)), grid((3, 5, 7), blocks=(2, 2, 3)),
           sequence((20, 0, 5, 33), block=8), sequence(9, block=16)]
FORMS = list(itertools.product(("none", "causal", "block_causal"),
                               ("exact", "shared_position", "none"), (False, True)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.text())
def test_the_linear_form_equals_the_dense_definition_in_f64(layout):
    for mask, normalizer, varied in FORMS:
        case = Case(layout, dk=8, dv=5, mask=mask, normalizer=normalizer, scale=0.5,
                    feature_map="elu1" if varied else "relu_eps", separate=varied, per_head=varied,
                    dtype=torch.float32)
        inputs = make_inputs(case, SEED, DEVICE)
        dense, parts = oracle.run(oracle.dense, case, inputs, torch.float64)
        linear, _ = oracle.run(oracle.blockwise, case, inputs, torch.float64)
        for name, value in dense.items():
            size = sum(part.norm() for part in parts[name])  # a gradient may cancel to nothing
            assert (value - linear[name]).norm() <= 1e-12 * size, f"{case.name()}: {name}"


def test_batches_one_by_one_give_the_same_truth():
    case = Case(grid((14, 14), block=(4, 4)), batch=3)
    inputs = make_inputs(case, SEED, DEVICE)
    whole, _ = oracle.run(oracle.blockwise, case, inputs, torch.float64)
    pieces, _ = oracle.in_batches(oracle.blockwise, case, inputs, torch.float64, 1)
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("damage", (1.05, float("nan"), "one element"))
def test_a_wrong_result_is_over_the_limit(damage):
    case = Case(grid((14, 14), block=(4, 4)))
    inputs = make_inputs(case, SEED, DEVICE)
    truth, parts = oracle.exact(case, inputs)
    plain = oracle.naive(case, inputs)
    assert all(row["ok"] for row in oracle.compare(case, plain, truth, parts, plain))
    for name in truth:
        wrong = {n: value.clone() for n, value in plain.items()}
        if damage == "one element":
            wrong[name][(-1,) * wrong[name].dim()] += truth[name].abs().max()
        else:
            wrong[name] *= damage
        rows = oracle.compare(case, wrong, truth, parts, plain)
        assert [row["name"] for row in rows if not row["ok"]] == [name]


def test_roundings_of_few_numbers_are_within_the_limit_and_those_of_two_bits_less_are_not():
    generator = torch.Generator().manual_seed(SEED)
    epsilon = torch.finfo(torch.bfloat16).eps
    exact = torch.rand(5000, 1, dtype=torch.float64, generator=generator) + 1
    few = torch.cat([exact, torch.full((5000, 999), 1e-4, dtype=torch.float64)], 1)
    for numbers in (exact, few):  # the small ones beside it do not count
        error = (numbers.bfloat16().double() - numbers).square().mean(1).sqrt()
        limit = epsilon * torch.tensor([oracle.rms_limit(row) for row in numbers])
        assert (error <= limit).all()
        assert (4 * error > limit).double().mean() > 0.5
    many = torch.rand(100_000, dtype=torch.float64, generator=generator) + 1
    assert oracle.rms_limit(many) < 1.02 / 8 * many.square().mean().sqrt()
    assert oracle.rms_limit(torch.zeros(3)) == 0


def test_guards_notice_writes_outside_and_elements_never_written():
    guarded = Guarded((2, 3, 2, 4), torch.bfloat16, DEVICE, strides=(72, 24, 4, 1))
    with pytest.raises(AssertionError, match="never written"):
        guarded.check("o")
    guarded.tensor.zero_()
    guarded.check("o")
    inside = guarded.tensor.storage_offset()
    for place in (inside - 1, inside + 8, guarded.flat.numel() - 1):  # before, between, after
        before = guarded.flat[place].clone()
        guarded.flat[place] = 1
        with pytest.raises(AssertionError, match="outside"):
            guarded.check("o")
        guarded.flat[place] = before
    guarded.check("o")

    space = GuardedWorkspace(1000, DEVICE)
    assert space.space.data_ptr() % 256 == 0 and space.space.numel() == 1000
    space.check()
    space.raw[space.start + 1000] = 0
    with pytest.raises(AssertionError, match="after the workspace"):
        space.check()


@pytest.mark.parametrize("lines, passes", (
    (["RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"], True),
    (["RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"], False),
    (["Maximum number of hazards reached",
      "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"], False),
    (["RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"] * 2, False),
    (["Warning: Race reported between Write access at a() in a.cuh:1",
      "    and Read access at b() in b.cuh:2 [4 hazards]"], False),
), ids=("clean", "a hazard", "more than are kept", "two programs", "stopped"))
def test_racecheck_passes_only_when_it_ended_without_a_hazard(tmp_path, lines, passes):
    log = tmp_path / "log"
    log.write_text("\n".join("========= " + line for line in lines))
    assert (races.judge(str(log)) == 0) == passes


@pytest.mark.parametrize("layout", (grid((3, 4, 6), blocks=(1, 2, 3)), sequence(64, block=16)),
                         ids=("video", "image"))
def test_the_authors_composition_is_the_shared_position_form(layout):
    case = Case(layout, dk=8, normalizer="shared_position", dtype=torch.float32)
    inputs = make_inputs(case, SEED, DEVICE)
    truth, _ = oracle.run(oracle.dense, case, inputs, torch.float64)
    o = peers.composition(case)(*(inputs[n] for n in ("q", "k", "v", "mixing")))
    torch.testing.assert_close(o.double(), truth["o"], rtol=1e-4, atol=1e-5)


def test_the_authors_chunk_loop_is_the_causal_form_without_normalizer():
    shape = next(shape for shape in SHAPES if shape.name == "LM")
    case = dataclasses.replace(shape.case, layout=sequence(64, block=16), batch=2, dk=16, dv=24)
    inputs = make_inputs(case, SEED, DEVICE)
    truth, _ = oracle.run(oracle.dense, case, inputs, torch.float64)
    o = peers.composition(case)(*(inputs[n] for n in ("q", "k", "v", "mixing")))
    torch.testing.assert_close(o.double(), truth["o"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("left_out", (0, 1))
def test_the_kernel_that_a_decode_step_is_compared_with_reads_every_number(left_out):
    pytest.importorskip("triton")
    script = f"""
import sys
sys.path.append(sys.argv[1])
import reading
whole = reading.read_once
reading.read_once = lambda numbers, sums: whole(numbers, sums[:len(sums) >> {left_out}])
reading.check("cpu")
"""
    folder = os.path.join(os.path.dirname(__file__), "../../bench/cuda_support")
    ended = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True,
                           env={**os.environ, "TRITON_INTERPRET": "1"})
    assert (ended.returncode == 0) == (not left_out), ended.stderr
    assert ("AssertionError" in ended.stderr) == bool(left_out), ended.stderr
