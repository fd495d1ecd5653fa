"""One token at a time: a step after a short and after a long prompt, and the mean over a block.

The floor is reading the state once: the f32 matrix of dk x dv of every head, by the bandwidth of a
copy. A kernel that does only this, to as many states, is timed beside it: of a small state it takes
much longer than the floor, as a launch does. States are branches of one another and take turns, so
that none finds its matrices in the cache unless those of all fit it.
"""

import dataclasses
import statistics
import time

import torch

import launch
import libmhla
import oracle
import timing
from cases import make_inputs, sequence

POSITIONS = (2048, 32768)
PIECE = 2048  # tokens read at once
SPARE = 12  # blocks that are stepped through


@dataclasses.dataclass(frozen=True)
class Decode:
    name: str
    case: object  # its batch and heads; the layout gives the block size
    states: int   # that take turns

    def floor_bytes(self):
        case = self.case
        return case.batch * case.heads * case.dk * case.width * 4


def error(case, device):
    """A prompt and steps against the truth: error over its limit."""
    small = dataclasses.replace(case, batch=min(case.batch, 2),
                                layout=sequence(300, block=case.layout.block[0]))
    inputs = make_inputs(small, torch.seed() % 2**31, device)
    o = torch.full_like(inputs["d_o"], float("nan"))
    state = libmhla.State(small.text(device), inputs["mixing"])
    cuts = [0, 150, *range(151, 301)]
    for first, last in zip(cuts, cuts[1:]):
        state.read(o[:, first:last], **{n: inputs[n][:, first:last] for n in ("q", "k", "v")})
    truth, parts = oracle.exact(small, inputs)
    row = oracle.compare(small, {"o": o}, {"o": truth["o"]}, parts, oracle.naive(small, inputs))[0]
    return row["rms"] / row["limit_rms"] if row["ok"] else 2.0


class Walk:
    """Branches of one state that step through a block together."""

    def __init__(self, state, tokens, o, count):
        self.states = [state] + [state.fork() for _ in range(count - 1)]
        block = tokens["q"].shape[1]
        self.calls = [[s.prepared(o[:, t:t + 1], **{n: x[:, t:t + 1] for n, x in tokens.items()})
                       for s in self.states] for t in range(block)]

    def run(self, first, last):
        for t in range(first, last):
            for call in self.calls[t]:
                call()

    def milliseconds(self, first, last):
        """Of one step, the device held back until the host has enqueued all of them."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        calls = (last - first) * len(self.states)
        torch.cuda._sleep(int((calls * 12e-6 + 50e-6) * timing.CYCLES_PER_SECOND))
        start.record()
        self.run(first, last)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / calls


def host_microseconds(walk, first, last):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    walk.run(first, last)
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / ((last - first) * len(walk.states)) * 1e6


def reading_microseconds(shape, device, log):
    """Of a kernel that only reads such states, where Triton can make one; else None."""
    try:
        return launch.read_microseconds(shape.floor_bytes(), shape.states, device)
    except Exception as error:  # of a compiler that is not ours: the step is timed without it
        log(f"  a kernel that reads the state is not timed: {type(error).__name__}: {error}")
        return None


def measure(shape, bandwidth, device, log):
    case = shape.case
    block = case.layout.block[0]
    blocks = POSITIONS[-1] // block + SPARE + 1
    mixing = torch.tril(torch.rand(blocks, blocks) + 0.1)
    mixing = mixing / mixing.sum(-1, keepdim=True)
    worst = error(case, device)
    log(f"  state: error {worst:.2f} of the limit")
    in_stream, in_graph = launch.empty_microseconds(device)
    log(f"  an empty kernel: {in_stream:.2f} us in a stream, {in_graph:.2f} us in a graph")
    reading = reading_microseconds(shape, device, log)
    if reading is not None:
        log(f"  one that reads the state: {reading:.2f} us")
    prompt = dataclasses.replace(case, layout=sequence(PIECE, block=block))
    tokens = {n: t for n, t in make_inputs(prompt, 1, device).items() if n in ("q", "k", "v")}
    o = torch.empty(case.batch, PIECE, case.heads, case.width, dtype=case.dtype, device=device)
    state = libmhla.State(prompt.text(device), mixing)
    floor = shape.floor_bytes() / bandwidth * 1e3
    rows = []
    for position in POSITIONS:
        torch.cuda.synchronize()
        begin, before = time.perf_counter(), state.tokens
        while state.tokens < position:
            state.read(o, **tokens)
        torch.cuda.synchronize()
        read_ms = (time.perf_counter() - begin) * 1e3
        # Branches: the state itself stays at the position.
        first = {n: t[:, :block] for n, t in tokens.items()}
        walk = Walk(state.fork(), first, o, shape.states)
        walk.run(0, block)
        inside, means = [], []
        for _ in range(SPARE - 4):
            begin_ms = walk.milliseconds(0, 4)
            middle = walk.milliseconds(4, block - 4)
            end_ms = walk.milliseconds(block - 4, block)
            inside.append(middle)
            means.append((4 * begin_ms + (block - 8) * middle + 4 * end_ms) / block)
        host = host_microseconds(walk, 0, block)
        ms, mean = statistics.median(inside), statistics.mean(means)
        name = f"{shape.name}@{position // 1024}k"
        over = "" if reading is None else f", {ms * 1e3 / reading:.2f} x a kernel that reads it"
        log(f"  {name}: step {ms * 1e3:.2f} us, {ms / floor:.2f} x floor ({floor * 1e3:.2f} us){over}; "
            f"mean over a block {mean * 1e3:.2f} us; host {host:.2f} us; "
            f"{position - before} tokens read in {read_ms:.1f} ms; {state.bytes / 2**20:.0f} MiB")
        rows.append(dict(shape=name, what="forward", problem=prompt.text(device), planned="state",
                         refused={}, floor_ms=floor, target=1.5, baselines={},
                         baseline_failures={}, input_sets=shape.states, seed=1,
                         implementation="state", ms=ms, multiple=ms / floor, block_ms=mean,
                         host_us=host, empty_us=in_stream, empty_graph_us=in_graph, read_us=reading,
                         error_over_limit=worst, worst_result="o",
                         forward_workspace_bytes=state.bytes, backward_workspace_bytes=0, ratio={}))
        del walk
    return rows
