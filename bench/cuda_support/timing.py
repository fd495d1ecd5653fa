"""Medians that neither the launch queue, the caches nor the first call can spoil."""

import statistics
import time

import torch

CACHE_BYTES = 512 << 20  # several times the 60 MB L2 of an H200: a set is evicted before its turn
CYCLES_PER_SECOND = 1.98e9  # of the H200's clock; only the length of a pause depends on it
COUNTED_CYCLES = 400_000  # 0.2 ms: what starting the count costs is a hundredth of it


def input_sets(bytes_per_set, on_gpu):
    """How many sets of inputs to rotate through."""
    return max(2, min(24, -(-CACHE_BYTES // bytes_per_set))) if on_gpu else 1


def median_ms(calls, budget_s=0.35):
    return measure(calls, budget_s)[0]


def measure(calls, budget_s=0.35):
    """Median time of one call in ms, and the clock of the multiprocessors just after it in GHz
    (None on a processor): a GPU at its limit of power lowers it.

    `calls` do the same on different data and are run round robin. The GPU is held by a pause while
    the host enqueues one round, so that a round measures the device and not the host.
    """
    if not torch.cuda.is_available():
        return _host_median_ms(calls), None
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for call in calls:
        call()
    enqueue = time.perf_counter() - begin
    torch.cuda.synchronize()
    round_s = time.perf_counter() - begin
    rounds = max(5, min(40, int(budget_s / (round_s + enqueue))))
    samples, clocks = [], []
    for _ in range(rounds):
        start, stop, counted = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda._sleep(int((min(1.5 * enqueue, 0.2) + 50e-6) * CYCLES_PER_SECOND))
        start.record()
        for call in calls:
            call()
        stop.record()
        torch.cuda._sleep(COUNTED_CYCLES)
        counted.record()
        counted.synchronize()
        samples.append(start.elapsed_time(stop) / len(calls))
        clocks.append(COUNTED_CYCLES / stop.elapsed_time(counted) * 1e-6)
    return statistics.median(samples), statistics.median(clocks)


def _host_median_ms(calls):
    samples = []
    for _ in range(3):
        for call in calls:
            begin = time.perf_counter()
            call()
            samples.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(samples)


def copy_bandwidth(device):
    """Bytes read plus bytes written per second of a large device-to-device copy."""
    size = 2 << 30 if device != "cpu" else 64 << 20
    source = torch.empty(size // 2, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    return 2 * size / (median_ms([lambda: target.copy_(source)]) * 1e-3)
