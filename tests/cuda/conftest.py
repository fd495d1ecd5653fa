"""Fresh random inputs every run, a printed seed, and a short account of the outcome."""

import collections
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import pytest
import torch

SEED = int(os.environ.get("MHLA_SEED") or random.randrange(2**31))
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    torch.set_num_threads(1)  # small tensors: threads cost more than they bring
OUTCOMES = collections.defaultdict(collections.Counter)  # implementation -> outcome -> count
REASONS = collections.Counter()  # (implementation, why refused)
FAILURES = []  # (test, first line of the failure)


def pytest_report_header(config):
    import libmhla
    try:
        where = f"{libmhla.library_path()}, implementations {libmhla.implementations(DEVICE)}"
    except (OSError, AttributeError) as error:
        where = f"not loaded: {error}"
    return [f"MHLA_SEED={SEED} device={DEVICE}", f"libmhla: {where}"]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if not (report.when == "call" or report.failed) or not hasattr(item, "callspec"):
        return
    implementation = item.callspec.params.get("implementation", "harness")
    if report.skipped:
        reason = str(call.excinfo.value)
        refused = reason.startswith("refused: ")
        OUTCOMES[implementation]["refused" if refused else "skipped"] += 1
        REASONS[(implementation, reason)] += 1
        return
    OUTCOMES[implementation][report.outcome] += 1
    if report.failed:
        worst = dict(item.user_properties).get("worst")
        first = str(call.excinfo.value).strip().splitlines() or [call.excinfo.typename]
        FAILURES.append((item.name, worst or f"{call.excinfo.typename}: {first[0]}"))


def pytest_terminal_summary(terminalreporter):
    write = terminalreporter.write_line
    terminalreporter.section("in short")
    for (implementation, reason), count in REASONS.most_common(20):
        write(f"{count:4}  {implementation}  {reason[:150]}")
    for test, what in FAILURES[:60]:
        write(f"FAILED {test.removeprefix('test_')[:120]}: {what[:160]}")
    if len(FAILURES) > 60:
        write(f"and {len(FAILURES) - 60} more failures")
    for implementation, counts in OUTCOMES.items():
        write(f"{implementation}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    write(f"MHLA_SEED={SEED}")
