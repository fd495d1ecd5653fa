"""Judges what compute-sanitizer's racecheck wrote: `races.py LOG...` prints the reports and fails unless
all are there and of the one pattern that racecheck does not know.

In cuda.dense lane 0 arrives at an mbarrier for its warp, after __syncwarp. That orders the other lanes'
accesses, too, but racecheck follows a barrier only for threads that arrive themselves:
tests/cuda/sanitizer_patterns.cu gets the same reports with nothing else in the kernel. There the loading
warps write through three functions, and the consumers are in a few files; the forward by positions, which
has another way to load, is none of them.
"""

import re
import sys
from pathlib import Path

WRITE = re.compile(r"Write access at mhla::cuda::sm90::(store_float|copy_async_8|copy_async_16)\(")
FILE = re.compile(r" in dense_(tile|load|forward|whole\w*|backward\w*|short\w*)\.cuh:\d+")
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
    """One of each pair is a loading warp's write, the other by a consumer."""
    first, *others = report
    return bool(others) and all(
        WRITE.search(first) and FILE.search(other) or WRITE.search(other) and FILE.search(first) for other in others
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
