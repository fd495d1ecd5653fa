"""Judges what compute-sanitizer's racecheck wrote: `races.py LOG...` prints the reports and fails unless
all are of the one pattern that racecheck does not know.

In cuda.dense lane 0 arrives at an mbarrier for its warp, after __syncwarp. That orders the other lanes'
accesses, too, but racecheck follows a barrier only for threads that arrive themselves:
tests/cuda/sanitizer_patterns.cu gets the same reports with nothing else in the kernel. There the loading
warps write through these functions.
"""

import re
import sys
from pathlib import Path

KNOWN = re.compile(r"Write access at mhla::cuda::sm90::(store_float|copy_async_8|copy_async_16)\(")


def reports(text: str) -> list[str]:
    """One string a report: its first line and those that begin with `and`."""
    found = []
    for line in text.splitlines():
        if "Race reported between" in line:
            found.append(line)
        elif found and re.match(r"=+\s+and (Read|Write) access", line):
            found[-1] += "\n" + line
    return found


def main():
    text = "\n".join(Path(name).read_text() for name in sys.argv[1:])
    if "RACECHECK SUMMARY" not in text:
        sys.exit("races: racecheck did not come to its end")
    all_reports = reports(text)
    unknown = [report for report in all_reports if not (KNOWN.search(report) and " in dense_" in report)]
    print("\n".join(unknown[:20]))
    print(f"racecheck: {len(all_reports) - len(unknown)} reports of the known pattern, {len(unknown)} others")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
