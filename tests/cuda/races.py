"""Judges what compute-sanitizer's racecheck wrote: `races.py LOG...` prints the reports and fails unless
all are there and of the one pattern that racecheck does not know.

Lane 0 of a warp arrives at an mbarrier for all of them, after __syncwarp. That orders the other lanes'
accesses, too, but racecheck follows a barrier only for threads that arrive themselves:
tests/cuda/sanitizer_patterns.cu gets the same reports with nothing else in the kernel. It sees accesses of
threads, not those of the copy engine, so what it reports are writes of the warps that load or prepare a
buffer, and the reads of those that compute:
  cuda.dense    rows and factors by three functions, read in a few files; the forward by positions, which has
                another way to load, is none of them
  cuda.causal   phi of the rows of a block in place, read by the three warpgroups of the backward
  cuda.linear   zeros in rows that a block of the other size has filled, written once all have read those
"""

import re
import sys
from pathlib import Path

# (writes, reads) of a pair
KNOWN = [
    (re.compile(write), re.compile(read))
    for write, read in (
        (r"Write access at mhla::cuda::sm90::(store_float|copy_async_8|copy_async_16)\(",
         r"Read access at .* in dense_(tile|load|forward|whole\w*|backward\w*|short\w*)\.cuh:\d+"),
        (r"Write access at void mhla::cuda::sm90::map_rows<.* in causal_tile\.cuh:\d+",
         r"Read access at .*::(load_factors<|store_rows_gradient\().* in causal_(tile|backward)\.cuh:\d+"),
        (r"Write access at mhla::cuda::sm90::store_zeros\(.* in linear_tile\.cuh:\d+",
         r"Read access at .*::load_fragment<.* in linear_tile\.cuh:\d+"),
    )
]
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
FULL = "Maximum number of hazards reached"  # a launch has more than racecheck keeps; counted as displayed


def reports(text: str) -> list[list[str]]:
    """The accesses of each report: one, and those it races with."""
    found = []
    for line in text.splitlines():
        if "Race reported between" in line:
            found.append([line])
        elif found and re.search(r"=\s+and (Read|Write) access", line):
            found[-1].append(line)
    return found


def is_known(report: list[str]) -> bool:
    """Of each pair one is such a write, the other such a read, all of them of one kernel."""
    first, *others = report
    return bool(others) and any(
        all(write.search(first) and read.search(other) or write.search(other) and read.search(first)
            for other in others)
        for write, read in KNOWN
    )


def judge(log: str) -> int:
    text = Path(log).read_text(errors="replace")
    summaries = SUMMARY.findall(text)
    if len(summaries) != 1:
        print(f"races: {len(summaries)} summaries in {log}: racecheck did not come to its end")
        return 1
    displayed, errors, warnings = map(int, summaries[0])
    found, full = reports(text), text.count(FULL)
    unknown = [report for report in found if not is_known(report)]
    for report in unknown[:20]:
        print("\n".join(report))
    line = f"racecheck: {len(found) - len(unknown)} reports of the known pattern, {len(unknown)} others"
    missing = not len(found) + full == displayed == errors + warnings
    if missing:
        line += f"; it found {errors + warnings}, displayed {displayed}, and {len(found) + full} were read"
    if full:
        line += f"; launches with more hazards than it keeps: {full}"
    print(line)
    return 1 if unknown or missing else 0


if __name__ == "__main__":
    sys.exit(max(map(judge, sys.argv[1:]), default=2))
