"""Fresh random inputs every run, a printed seed, and a count of what was refused."""

import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import pytest
import torch

SEED = int(os.environ.get("MHLA_SEED") or random.randrange(2**31))
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
REFUSED = []


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
    if report.when == "call" and call.excinfo and call.excinfo.errisinstance(pytest.skip.Exception):
        reason = str(call.excinfo.value)
        if reason.startswith("refused"):
            REFUSED.append((item.callspec.params.get("implementation"), reason))


def pytest_terminal_summary(terminalreporter):
    counts = {}
    for key in REFUSED:
        counts[key] = counts.get(key, 0) + 1
    if counts:
        terminalreporter.section("refused cases (not passed)")
    for (implementation, reason), count in sorted(counts.items(), key=lambda item: -item[1])[:25]:
        terminalreporter.write_line(f"{count:4}  {implementation}: {reason[:160]}")
    terminalreporter.write_line(f"MHLA_SEED={SEED}")
