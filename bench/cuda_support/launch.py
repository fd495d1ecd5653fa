"""What a launch costs by itself: the smallest kernel PyTorch has, one after another."""

import statistics

import torch

import timing

CALLS = 400


def empty_microseconds(device):
    """Of one launch in a stream, and of one in the replay of a graph."""
    x = torch.zeros(1, device=device)

    def calls():
        for _ in range(CALLS):
            x.zero_()

    def median(run):
        samples = []
        for _ in range(9):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int((CALLS * 8e-6 + 50e-6) * timing.CYCLES_PER_SECOND))
            start.record()
            run()
            stop.record()
            stop.synchronize()
            samples.append(start.elapsed_time(stop) / CALLS * 1e3)
        return statistics.median(samples)

    calls()
    in_stream = median(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    graph.replay()
    return in_stream, median(graph.replay)
