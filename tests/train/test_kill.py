"""SIGKILL at random moments: no checkpoint is ever unreadable, and the end is the same bit for bit.

MHLA_KILLS=200 kills more often; MHLA_KILL_SEED chooses other moments.
"""

import os
import random
import time

from program import contents, kill, log, mhla, newest, start, write_config

KILLS = int(os.environ.get("MHLA_KILLS", "20"))


def test_killed_at_random_moments_a_run_ends_with_the_same_weights(tmp_path):
    # Long enough for the kills to fall into training and saving, not only into the start.
    config = write_config(tmp_path)
    options = ["train.epochs=40", "train.save_every=2", "train.eval_every=20"]
    mhla("train", config, "--out", tmp_path / "whole", *options)
    wanted = contents(newest(tmp_path / "whole"))

    moments = random.Random(int(os.environ.get("MHLA_KILL_SEED", "0")))
    run = tmp_path / "killed"
    words = ["train", config, "--out", run, "--resume", *options]
    done = 0
    while done < KILLS:
        before = newest(run)
        process = start(*words)
        # Once it has saved something, the start is over; then anywhere inside the next updates.
        deadline = time.monotonic() + 60
        inside = moments.random() < 0.8
        while inside and process.poll() is None and time.monotonic() < deadline:
            if newest(run) != before:
                break
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.15 if inside else 1.0))
        if process.poll() is not None:  # it came to its end: begin again
            assert process.returncode == 0, process.stderr.read()
            assert contents(newest(run)) == wanted
            kill(process)
            run = tmp_path / f"killed{done}"
            words[3] = run
            continue
        kill(process)
        done += 1
        for folder in (run / "checkpoints").glob("step-*"):
            assert sorted(contents(folder)) == sorted(wanted), f"{folder} is not complete"
    mhla(*words)
    assert contents(newest(run)) == wanted
    steps = [line["step"] for line in log(run) if line["kind"] == "eval"]
    assert steps == sorted(set(steps))
