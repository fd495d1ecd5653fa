#!/usr/bin/env python3
"""libmhla on a GPU against its memory floor and its peers: verified first, then timed.

The floor of a shape is the bytes of q, k, v and o (times three with the backward) over the copy
bandwidth measured in the same run; that of a decode step is reading its state once.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys

# NOTE: this folder must leave the path, or `import cuda` inside PyTorch finds this file.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.join(HERE, "cuda_support")
sys.path.insert(1, os.path.join(HERE, "../tests/cuda"))

import torch

import decode
import libmhla
import oracle
import peers
import table
import timing
from cases import make_inputs
from shapes import DECODE, SHAPES, TINY


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", metavar="NAME", help="default: all of the table")
    parser.add_argument("--implementation", nargs="+", metavar="NAME",
                        help="default: every one compiled for the device")
    parser.add_argument("--what", choices=("forward", "backward", "both"), default="both",
                        help="backward means forward and backward together")
    parser.add_argument("--normalizer", choices=("exact", "shared_position", "none"),
                        help="of ours, instead of exact (language: none)")
    parser.add_argument("--quick", action="store_true", help="skip the compiled composition")
    parser.add_argument("--only-compile", action="store_true",
                        help="only fill the compiler's cache, for a run that follows; nothing is timed")
    parser.add_argument("--no-peers", action="store_true", help="time only ours")
    parser.add_argument("--no-verify", action="store_true", help="time unverified kernels")
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-",
                        help="write all numbers; without FILE to standard output")
    arguments = parser.parse_args()
    known = {shape.name.lower(): shape for shape in SHAPES + DECODE + TINY}
    on_gpu = torch.cuda.is_available()
    names = arguments.shape or [s.name for s in (SHAPES + DECODE if on_gpu else TINY)]
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        parser.error(f"unknown shape {unknown[0]}; known: {', '.join(s.name for s in SHAPES + DECODE)}")
    arguments.shapes = [known[name.lower()] for name in names]
    return arguments


def log(*words):
    print(*words, file=sys.stderr, flush=True)


def operands(inputs):
    return {name: inputs[name] for name in ("q", "k", "v", "mixing")}


def outputs_of(case, device):
    """o and gradients, those of q, k, v fused like their inputs."""
    b, n, h = case.batch, case.layout.tokens, case.heads
    o = torch.empty(b, n, h, case.width, dtype=case.dtype, device=device)
    m = case.layout.mixing_size
    gradients = {"d_mixing": torch.empty(m, m, device=device)}
    if case.strides == "fused":
        fused = torch.empty(b, n, 3, h, case.dk, dtype=case.dtype, device=device)
        gradients.update(d_q=fused[:, :, 0], d_k=fused[:, :, 1], d_v=fused[:, :, 2])
    else:
        for name, width in (("d_q", case.dk), ("d_k", case.dk), ("d_v", case.width)):
            gradients[name] = torch.empty(b, n, h, width, dtype=case.dtype, device=device)
    return o, gradients


class Truth:
    """The f64 results and the naive ones of a shape, computed once for all implementations."""

    def __init__(self, case, inputs):
        self.case, self.inputs = case, inputs
        self.exact, self.parts = oracle.exact(case, inputs)
        self.naive = oracle.naive(case, inputs)

    def worst(self, plan, backward):
        """Largest error over its limit (twice the naive error); at most 1 when right, and where."""
        o, gradients = outputs_of(self.case, self.inputs["q"].device)
        for tensor in (o, *gradients.values()):
            tensor.fill_(float("nan"))
        libmhla.forward(plan, **operands(self.inputs), o=o)
        ours = {"o": o}
        if backward:
            libmhla.backward(plan, **self.inputs, o=o, gradients=gradients)
            ours.update(gradients)
        truth = {name: self.exact[name] for name in ours}
        rows = oracle.compare(self.case, ours, truth, self.parts, self.naive)
        ratios = {r["name"]: r["rms"] / r["limit_rms"] if r["ok"] else
                  max(r["rms"] / r["limit_rms"], r["max"] / r["limit_max"], 1.01) for r in rows}
        name = max(ratios, key=lambda n: float("inf") if ratios[n] != ratios[n] else ratios[n])
        return ratios[name], name


def our_calls(plan, sets, device, what):
    case_outputs = [outputs_of(inputs["case"], device) for inputs in sets]
    forward_space = libmhla.workspace(plan.forward_workspace, device)
    backward_space = libmhla.workspace(plan.backward_workspace, device)
    made = []
    for inputs, (o, gradients) in zip(sets, case_outputs):
        tensors = {n: t for n, t in inputs.items() if n != "case"}
        forward = libmhla.prepared_forward(plan, **operands(tensors), o=o, space=forward_space)
        if what == "forward":
            made.append(forward)
            continue
        backward = libmhla.prepared_backward(plan, {**tensors, "o": o}, gradients, backward_space)

        def both(forward=forward, backward=backward):
            forward()
            backward()
        made.append(both)
    return made


def plans_of(text, names):
    """The plans of those that serve the problem, the others' reasons, the planner's choice."""
    plans, refused, planned = {}, {}, None
    try:
        planned = libmhla.plan(text).implementation
    except libmhla.Refused as refusal:
        refused["planner"] = str(refusal)
    for name in names:
        try:
            plans[name] = libmhla.plan(text, name)
        except libmhla.Refused as refusal:
            refused[name] = libmhla.reason(refusal, name)
    return plans, refused, planned


def verify(case, plans, seed, device, backward):
    truth = Truth(case, make_inputs(case, seed, device))
    errors = {}
    for name, plan in plans.items():
        errors[name] = truth.worst(plan, backward)
        log(f"  {name}: error {errors[name][0]:.2f} of the limit ({errors[name][1]})")
    return errors


def measure_shape(shape, arguments, bandwidth, device):
    case = shape.case
    if arguments.normalizer and case.mask == "none":
        case = dataclasses.replace(case, normalizer=arguments.normalizer)
    whats = {"forward": ["forward"], "backward": ["forward+backward"],
             "both": ["forward", "forward+backward"]}[arguments.what]
    text = case.text(device)
    names = arguments.implementation or libmhla.implementations(device)
    plans, refused, planned = plans_of(text, names)
    seed = torch.seed() % 2**31
    errors = {}
    if plans and not arguments.no_verify:
        errors = verify(case, plans, seed, device, backward=arguments.what != "forward")
    count = timing.input_sets(shape.forward_bytes(), device != "cpu")
    sets = [{**make_inputs(case, seed + 1 + i, device), "case": case} for i in range(count)]
    rows = []
    for what in whats:
        baselines, failures = {}, {}
        if not arguments.no_peers:
            baselines, failures = measure_peers(case, sets, what, not arguments.quick)
        common = dict(shape=shape.name, what=what, problem=text, planned=planned, refused=refused,
                      floor_ms=shape.floor_bytes(what) / bandwidth * 1e3,
                      target=shape.target[what != "forward"] if shape.target else None,
                      baselines=baselines, baseline_failures=failures, input_sets=count, seed=seed)
        for name, plan in plans.items():
            times = timing.measure(our_calls(plan, sets, device, what))
            rows.append(our_row(common, plan, times, errors.get(name, (None, None))))
        if not plans:
            rows.append(dict(common, implementation=None, ms=None, multiple=None, ratio={},
                             error_over_limit=None, worst_result=None))
    return rows


def our_row(common, plan, times, error):
    ms, clock = times
    multiple = ms / common["floor_ms"]
    log(f"  {common['what']} {plan.implementation}: {ms * 1e3:.1f} us, {multiple:.2f} x floor")
    return dict(common, implementation=plan.implementation, ms=ms, multiple=multiple,
                clock_ghz=clock, error_over_limit=error[0], worst_result=error[1],
                forward_workspace_bytes=plan.forward_workspace,
                backward_workspace_bytes=plan.backward_workspace,
                ratio={peer: time / ms for peer, time in common["baselines"].items()})


def measure_peers(case, sets, what, compiled):
    times, failures = {}, {}
    for name, attention in peers.peers(case, compiled).items():
        try:
            times[name] = timing.median_ms(peers.calls(attention, sets, what))
            log(f"  {what} {name}: {times[name] * 1e3:.1f} us")
        except Exception as error:  # a peer that does not serve a shape must not end the run
            failures[name] = str(error).splitlines()[0] if str(error) else repr(error)
            log(f"  {what} {name}: {failures[name]}")
    return times, failures


def fill_compiler_cache(shapes, device):
    for shape in (shape for shape in shapes if not isinstance(shape, decode.Decode)):
        attention = peers.peers(shape.case, compiled=True).get("compiled")
        if attention is None:
            continue
        log(shape.name)
        inputs = [make_inputs(shape.case, 0, device)]
        for what in ("forward", "forward+backward"):
            try:
                peers.calls(attention, inputs, what)[0]()
            except Exception as error:  # it will be reported where it is timed
                log(f"  {what}: {error!r}")


def measure_all(arguments, result, bandwidth, device):
    """Fills result["rows"] and the file shape by shape; what a time limit leaves is reported."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for shape in arguments.shapes:
            log(shape.name)
            if isinstance(shape, decode.Decode):
                result["rows"] += decode.measure(shape, bandwidth, device, log)
            else:
                result["rows"] += measure_shape(shape, arguments, bandwidth, device)
            if arguments.json not in (None, "-"):
                with open(arguments.json, "w") as file:
                    json.dump(result, file, indent=1)
            if device != "cpu":
                torch.cuda.empty_cache()
    except KeyboardInterrupt:
        log("stopped before the end")
        return False
    return True


def main():
    arguments = parse_arguments()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device != "cpu" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    if arguments.only_compile:
        fill_compiler_cache(arguments.shapes, device)
        return 0
    bandwidth = timing.copy_bandwidth(device)
    log(f"{machine}: copy {bandwidth * 1e-12:.2f} TB/s, {libmhla.library_path()}")
    result = dict(machine=machine, torch=torch.__version__, copy_bytes_per_second=bandwidth,
                  rows=[])
    complete = measure_all(arguments, result, bandwidth, device)
    if arguments.json == "-":
        print(json.dumps(result, indent=1))
    table.show(result, sys.stderr if arguments.json == "-" else sys.stdout)
    errors = [r["error_over_limit"] for r in result["rows"] if r["error_over_limit"] is not None]
    return 0 if complete and all(error <= 1 for error in errors) else 1


if __name__ == "__main__":
    sys.exit(main())
