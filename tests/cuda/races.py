"""Judges what compute-sanitizer's racecheck wrote: `races.py LOG...` fails unless it came to its end and
reported no hazard, and prints the first reports otherwise.

It has to have run the library in which every lane arrives at a barrier (libmhla_every_lane): racecheck
follows a barrier only for threads that arrive themselves, and takes what lane 0 does for its warp, after
__syncwarp, for a race (tests/cuda/sanitizer_patterns.cu).
"""

import re
import sys
from pathlib import Path

SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
FULL = "Maximum number of hazards reached"  # a launch had more than racecheck keeps; the rest is not judged
SHOWN = 10


def reports(text: str) -> list[str]:
    """What is said of each race: one access, and those it races with."""
    found = []
    for line in text.splitlines():
        if "Race reported between" in line:
            found.append(line)
        elif found and re.search(r"=\s+and (Read|Write) access", line):
            found[-1] += "\n" + line
    return found


def judge(log: str) -> int:
    text = Path(log).read_text(errors="replace")
    summaries = SUMMARY.findall(text)
    if len(summaries) != 1:
        print(f"races: {len(summaries)} summaries in {log}: racecheck did not come to its end")
        return 1
    displayed, errors, warnings = map(int, summaries[0])
    found, full = reports(text), text.count(FULL)
    print(*found[:SHOWN], sep="\n", end="\n" if found else "")
    print(f"racecheck: {displayed} hazards ({errors} errors, {warnings} warnings)"
          + (f"; launches with more than it keeps: {full}" if full else ""))
    return 1 if found or full or displayed or errors or warnings else 0


if __name__ == "__main__":
    sys.exit(max(map(judge, sys.argv[1:]), default=2))
