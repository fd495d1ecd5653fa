"""SIGKILL at random moments: no checkpoint is ever unreadable, and the end is the same bit for bit.

scripts/kill-training kills more often: MHLA_KILLS says how often, MHLA_KILL_SEED chooses other moments.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from program import PROGRAM, children, contents, kill, log, mhla, newest, start, write_config

KILLS = int(os.environ.get("MHLA_KILLS", "20"))
SEED = int(os.environ.get("MHLA_KILL_SEED", "0"))


def wait_inside(process, run, moments):
    """Until a random moment: of the start, of the updates after a checkpoint, or of the next save."""
    before, deadline = newest(run), time.monotonic() + 60
    kind = moments.choices(["start", "updates", "save"], [1, 2, 2])[0]
    while kind != "start" and process.poll() is None and time.monotonic() < deadline:
        if kind == "save" and list((run / "checkpoints").glob(".tmp-*")):
            break
        if kind == "updates" and newest(run) != before:
            break
        time.sleep(0.001)
    time.sleep(moments.uniform(0.0, {"start": 1.0, "updates": 0.15, "save": 0.005}[kind]))


def assert_whole(run, wanted):
    for folder in (run / "checkpoints").glob("step-*"):
        assert sorted(contents(folder)) == sorted(wanted), f"{folder} is not complete"


def where(run):
    """What a kill fell into."""
    left = [path.name[:5] for path in (run / "checkpoints").glob(".*")]
    return {".tmp-": "while saving", ".old-": "while removing"}.get(left[0]) if left else "elsewhere"


def test_killed_at_random_moments_a_run_ends_with_the_same_weights(tmp_path):
    # Long enough for the kills to fall into training and saving, not only into the start.
    config = write_config(tmp_path)
    options = ["train.epochs=40", "train.save_every=2", "train.eval_every=20"]
    mhla("train", config, "--out", tmp_path / "whole", *options)
    wanted = contents(newest(tmp_path / "whole"))

    moments = random.Random(SEED)
    run = tmp_path / "killed"
    words = ["train", config, "--out", run, "--resume", *options]
    done, fell, ends = 0, Counter(), 0
    while done < KILLS:
        process = start(*words)
        wait_inside(process, run, moments)
        if process.poll() is not None:  # it came to its end: begin again
            assert process.returncode == 0, process.stderr.read()
            assert contents(newest(run)) == wanted
            kill(process)
            ends += 1
            run = tmp_path / f"killed{done}"
            words[3] = run
            continue
        kill(process)
        done += 1
        fell[where(run)] += 1
        assert_whole(run, wanted)
    mhla(*words)
    assert contents(newest(run)) == wanted
    steps = [line["step"] for line in log(run) if line["kind"] == "eval"]
    assert steps == sorted(set(steps))
    print(f"{done} kills {dict(fell)}, {ends + 1} runs came to their end")


def test_a_killed_job_of_two_processes_goes_on_with_one_or_two(tmp_path):
    """Either a worker is killed, or whoever started both: its workers must not go on by themselves."""
    config = write_config(tmp_path)
    options = ["train.epochs=12", "train.save_every=2", "train.eval_every=12"]
    one, two = ["train.accumulate=2"], ["--processes", 2]
    probe = mhla("train", config, "--out", tmp_path / "probe", *two, "train.steps=1", check=False)
    if "lacks" in probe.stderr:
        pytest.skip(probe.stderr)
    mhla("train", config, "--out", tmp_path / "whole", *options, *one)
    wanted = contents(newest(tmp_path / "whole"))

    moments = random.Random(SEED)
    run, fell = tmp_path / "killed", Counter()
    words = ["train", config, "--out", run, "--resume", *options]
    for i in range(max(KILLS // 8, 2)):
        process = start(*words, *two)
        wait_inside(process, run, moments)
        workers = children(process.pid)
        victim = moments.choice(workers) if i % 2 and workers else process.pid
        if process.poll() is None:
            os.kill(victim, signal.SIGKILL)
            fell["launcher" if victim == process.pid else "worker"] += 1
        _, text = process.communicate(timeout=60)
        if victim != process.pid and process.returncode:
            assert len([line for line in text.splitlines() if "mhla: error" in line]) == 1, text
        deadline = time.monotonic() + 10
        while any(alive(worker) for worker in workers):
            assert time.monotonic() < deadline, "a worker goes on without its launcher"
            time.sleep(0.01)
        if newest(run):
            assert_whole(run, wanted)
        # Now and then one process takes over for a while.
        if moments.random() < 0.5:
            process = start(*words, *one)
            wait_inside(process, run, moments)
            kill(process)
            fell["alone"] += 1
    mhla(*words, *moments.choice([one, two]))
    assert contents(newest(run)) == wanted
    print(f"kills {dict(fell)}")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_full_disk_is_one_error_and_the_run_goes_on_where_there_is_room(tmp_path):
    config = write_config(tmp_path)
    (tmp_path / "disk").mkdir()
    script = """
      mount -t tmpfs -o size=800k tmpfs "$1/disk" || exit 77
      "$2" train "$3" --out "$1/disk/run"; code=$?
      cp -r "$1/disk/run" "$1/run"; exit $code"""
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, "sh", tmp_path, PROGRAM, config],
        capture_output=True, text=True, timeout=120,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no disk of its own: {done.stderr}")
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(errors) == 1 and "No space left on device" in errors[0], done.stderr
    last = newest(tmp_path / "run")
    assert last is not None and last.name in errors[0]
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    mhla("train", config, "--out", tmp_path / "run", "--resume")
    mhla("train", config, "--out", tmp_path / "whole")
    assert contents(newest(tmp_path / "run")) == contents(newest(tmp_path / "whole"))
