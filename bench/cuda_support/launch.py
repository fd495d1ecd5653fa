"""What a launch costs by itself, and one that reads bytes and does nothing else."""

import statistics
import time

import torch

import timing

CALLS = 400


def median_microseconds(run):
    """Of one of the CALLS launches of a run, the device held back until all are enqueued."""
    begin = time.perf_counter()
    run()
    enqueue = time.perf_counter() - begin
    samples = []
    for _ in range(9):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int((1.5 * enqueue + 50e-6) * timing.CYCLES_PER_SECOND))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) / CALLS * 1e3)
    return statistics.median(samples)


def empty_microseconds(device):
    """Of the smallest kernel PyTorch has: one launch in a stream, and one in the replay of a graph."""
    x = torch.zeros(1, device=device)

    def calls():
        for _ in range(CALLS):
            x.zero_()

    calls()
    in_stream = median_microseconds(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    graph.replay()
    return in_stream, median_microseconds(graph.replay)


def read_microseconds(size, count, device):
    """Of a kernel that reads one of `count` states of `size` bytes (a power of two) in turn.

    Few parts leave multiprocessors idle, many are scheduled in turns: the quickest number counts.
    """
    import reading  # needs Triton

    reading.check(device)
    numbers = size // 4
    buffers = [torch.randn(numbers, device=device) for _ in range(count)]

    def microseconds(part):
        sums = torch.empty(numbers // part, device=device)

        def calls():
            for i in range(CALLS):
                reading.read_once(buffers[i % len(buffers)], sums)

        calls()
        return median_microseconds(calls)

    return min(microseconds(part) for part in (1024, 2048, 4096, 8192))
