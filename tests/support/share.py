"""pytest -p share, with MHLA_SHARE=I/N: one N-th of the tests (I from 0 to N - 1), so that processes can
share the work. Which one is drawn from a test's name: neighbours often take equally long."""

import os
import zlib

import pytest

CUT = pytest.StashKey[int]()  # how many tests the other shares have


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config, items):
    mine, count = map(int, os.environ.get("MHLA_SHARE", "0/1").split("/"))
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % count != mine]
    config.stash[CUT] = len(others)
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session, exitstatus):
    """A share may be empty, unlike the whole."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(CUT, 0) > 0:
        session.exitstatus = pytest.ExitCode.OK
