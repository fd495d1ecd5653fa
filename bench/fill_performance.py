#!/usr/bin/env python3
"""Writes the numbers of `mhla bench cpu --compare torch --json` into docs/performance.md.

  bench/fill_performance.py bench.json [--commit TEXT] [--page docs/performance.md]

Everything between the two marks of the page is replaced; nothing is written from a run during
which other programs were busy or a result was wrong.
"""

import argparse
import json
import os
import sys

BEGIN, END = "<!-- cpu numbers: begin -->", "<!-- cpu numbers: end -->"
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "performance.md")
TOO_MUCH_LOAD = 0.3  # busy cores


def number(value, form="{:.2f}"):
    return "–" if value is None else form.format(value)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def against(row, family, unit=1):
    ms = row["baselines"].get(family)
    if ms is None:
        return "–"
    return f"{ms * unit:.{2 if unit == 1 else 1}f} ({row['ratio'][family]:.2f}×)"


def operator_rows(result):
    for row in result["rows"]:
        if row["what"] == "decode":
            continue
        share = row["ceiling_share"]
        speedup = row["thread_speedup"]
        yield [row["shape"], row["dtype"], row["what"], number(row["ms"], "{:.3f}"),
               number(row["gflops"], "{:.0f}"), number(share and share * 100, "{:.0f} %"),
               number(speedup, "{:.2f}×"), against(row, "composed"), against(row, "linear"),
               against(row, "softmax"), number(row["error"], "{:.0e}")]


def decode_rows(result):
    for row in result["rows"]:
        if row["what"] != "decode":
            continue
        mean = row["block_mean_ms"]
        yield [row["shape"], row["dtype"], str(row["tokens"]),
               number(row["ms"] and row["ms"] * 1e3, "{:.1f}"),
               number(mean and mean * 1e3, "{:.1f}"), against(row, "composed", 1000),
               against(row, "softmax", 1000)]


def growth_rows(result):
    first = result["growth"][0]
    for point in result["growth"]:
        linear = first["ms"] * point["tokens"] / first["tokens"]
        yield [str(point["tokens"]), number(point["ms"], "{:.2f}"),
               number(point["ms"] / linear, "{:.3f}")]


def page_lines(result, commit):
    gemm = ", ".join(f"{dtype} {gflops:.0f}" for dtype, gflops in result["gemm_gflops"].items())
    lines = [f"{result['machine']}, {result['threads']} threads, {result['compiler']}, "
             f"{result['compared_with'] or 'no comparison'}" + (f", {commit}" if commit else "") + ".",
             f"Large gemm in the same run, GFLOP/s: {gemm or '–'}.", ""]
    lines += table(["shape", "dtype", "what", "ms", "GFLOP/s", "of gemm", "threads", "composed, ms",
                    "linear, ms", "softmax, ms", "error"], operator_rows(result))
    decode = list(decode_rows(result))
    if decode:
        lines += table(["decode", "dtype", "after tokens", "µs a step", "with block opening",
                        "composed, µs", "softmax, µs"], decode)
    if result["growth"]:
        lines += table(["tokens, 16 blocks", "ms", "over linear growth"], growth_rows(result))
    if result["goals"]:
        lines += table(["goal (the worst row counts)", "wanted", "reached", "", "where"],
                       [[g["goal"], number(g["wanted"]), number(g["reached"]),
                         "met" if g["met"] else "**missed**", g["where"]] for g in result["goals"]])
    for row in result["rows"]:
        for who, why in row["skipped"].items():
            lines.append(f"Left out: {who} at {row['shape']} {row['dtype']} {row['what']}: {why}.")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", help="the JSON document")
    parser.add_argument("--commit", default="", help="what was measured, in words")
    parser.add_argument("--page", default=PAGE)
    arguments = parser.parse_args()
    with open(arguments.result) as file:
        result = json.load(file)
    if result["wrong"]:
        return f"{result['wrong']} results of that run are wrong"
    if result["load"] > TOO_MUCH_LOAD:
        return f"other programs kept {result['load']:.1f} cores busy during that run"
    with open(arguments.page) as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    lines = page_lines(result, arguments.commit)
    with open(arguments.page, "w") as file:
        file.write(before + BEGIN + "\n" + "\n".join(lines).rstrip() + "\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
