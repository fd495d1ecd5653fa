"""pytest -p share, with MHLA_SHARE=I/N: one N-th of the tests (I from 0 to N - 1), so that processes can
share the work. Which one is drawn from a test's name: neighbours often take equally long."""

import os
import zlib


def pytest_collection_modifyitems(items):
    mine, count = map(int, os.environ.get("MHLA_SHARE", "0/1").split("/"))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % count == mine]
