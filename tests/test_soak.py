"""`scripts/soak.py`: what it calls a leak, and a run of a few rollouts."""

import json
import os
import signal
import subprocess
import time

import pytest

from lit_reason.jsonl import append_rows, read_rows
from scripts import soak
from scripts.soak import (
    ACCURACY,
    KINDS,
    LONG,
    REWARD,
    WARM,
    curve,
    end_orphans,
    fault,
    faults_of,
    leaks,
    main,
    missing,
    suffering,
    usage,
)


def life(process=1, length=90, start=None, **growth):
    """Rollouts of a process whose use begins so and grows by so much with each."""
    rows = []
    for i in range(WARM + length):
        now = {"memory": 2**29, "handles": 20, "children": 0, **(start or {})}
        now |= {key: int(now[key] + each * i) for key, each in growth.items()}
        rows.append({"rollout": i + 1, "process": process, **now})
    return rows


def found(tmp_path, *lives, **kwargs):
    append_rows(tmp_path / "usage.jsonl", [row for life in lives for row in life])
    return leaks(tmp_path, **kwargs)


@pytest.mark.parametrize(
    ("growth", "names"),
    [
        ({}, []),
        ({"memory": 2**20}, ["memory"]),
        ({"memory": -(2**20)}, ["memory"]),
        ({"handles": 1}, ["handles", "handles"]),  # in the process, and by rollout
        ({"children": 1}, ["children"]),
    ],
)
def test_what_grows_in_a_process_is_a_leak(tmp_path, growth, names):
    assert [x.split()[0] for x in found(tmp_path, life(), life(process=2, **growth))] == names


def test_lives_too_short_to_be_measured_are_no_proof(tmp_path):
    lives = [life(process=i, length=0, memory=2**30) for i in range(41)]
    assert found(tmp_path, *lives) == [
        f"no process lived {LONG} rollouts, so that none could be measured"
    ]


def test_what_grows_from_process_to_process_is_a_leak(tmp_path):
    lives = [life(process=i, start={"memory": 2**29 + i * 2**23}) for i in range(9)]
    (leak,) = found(tmp_path, *lives)
    assert leak.startswith("memory")
    assert leak.endswith("from process to process")


def test_a_handle_in_twenty_rollouts_is_a_leak(tmp_path):
    lives = [life(process=i, length=40, handles=0.05) for i in range(4)]
    (leak,) = found(tmp_path, *lives)
    assert leak.endswith("by rollout")


def test_a_handle_for_each_fault_is_a_leak(tmp_path):
    rows, faulty = life(length=500), {100, 250, 400}
    for row in rows:
        row["handles"] += sum(row["rollout"] - 1 >= rollout for rollout in faulty)
    assert "handles 3 more in 3 rollouts, by fault" in found(tmp_path, rows, faulty=faulty)


def test_handles_that_come_and_go_are_no_leak(tmp_path):
    rows = life(length=500)
    for row in rows:
        row["handles"] += row["rollout"] % 3
    assert found(tmp_path, rows, faulty=set(range(0, 500, 20))) == []


def test_it_measures_this_process():
    with open(__file__) as one, open(__file__):
        two_open = usage()
        one.close()
        assert usage()["handles"] == two_open["handles"] - 1
    assert two_open["memory"] > 2**20


def test_a_process_that_left_its_parent_is_found_and_ended(tmp_path):
    mark = str(tmp_path)
    environment = {**os.environ, soak.MARK: mark}
    assert end_orphans(mark, grace=0) == []
    subprocess.run(["sh", "-c", "setsid sleep 312 &"], env=environment, check=True)
    until = time.monotonic() + 10
    while (left := list(soak.marked(mark).values())) != ["sleep 312"] and time.monotonic() < until:
        time.sleep(0.01)
    assert left == end_orphans(mark, grace=0.1) == ["sleep 312"]
    assert end_orphans(mark, grace=10) == []


RUN = {"rollouts": 500, "reward": 0.98, "accuracy": 0.99}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"accuracy": 0.985, "reward": 0.96}, []),
        ({"rollouts": 499}, ["rollouts"]),
        ({"accuracy": 0.99 - ACCURACY - 0.01}, ["accuracy"]),
        ({"accuracy": 0.99 + ACCURACY + 0.01}, ["accuracy"]),
        ({"reward": 0.98 - REWARD - 0.01}, ["reward"]),
        ({"reward": 0.98 + REWARD + 0.01}, ["reward"]),
        ({"reward": float("nan")}, ["reward"]),
    ],
)
def test_a_curve_that_is_another_one_suffers(change, names):
    assert [x.split()[0] for x in suffering(RUN, {**RUN, **change})] == names


def test_what_never_came_is_missed():
    every = {kind: {3} for kind in KINDS}
    ended, killed = {"status": 0, "left": []}, {"status": -9, "left": []}
    assert missing([killed, ended], every) == []
    assert missing([ended], every) == ["no signal"]
    assert missing([killed, ended], {**every, "empty": set()}) == ["no fault: empty"]


def test_faults_are_the_same_when_a_rollout_is_repeated_and_all_kinds_come():
    drawn = [fault(0, 0.03, rollout) for rollout in range(500)]
    assert drawn == [fault(0, 0.03, rollout) for rollout in range(500)]
    assert all(5 < drawn.count(kind) < 30 for kind in KINDS)


def test_faults_are_counted_and_their_rewards_left_out(tmp_path, monkeypatch):
    given = {
        1: "truncated",
        2: "not finite",
        3: "unscored",
        4: "empty",
        9: "truncated",
        25: "empty",
    }
    monkeypatch.setattr(soak, "fault", lambda seed, rate, rollout: given.get(rollout))
    columns = "rollout,reward,truncated,update/nonfinite_actor,reward/unscored,response_length_max"
    columns += ",response_length,val/accuracy"
    rows = ["1,1,0,0,0,9,8,", "2,1,1,0,0,9,8,", "3,0,0,0.5,0,9,8,", "4,nan,0,,1,9,8,", ",,,,,,,0.5"]
    rows += ["5,-1,0,0,0,1,1,", *(f"{i},0.8,0,0,0,9,8," for i in range(6, 26)), "26,-1,0,0,0,1,1,"]
    (tmp_path / "metrics.csv").write_text("\n".join([columns, *rows, ""]))
    faults = faults_of(tmp_path, 0, 0.03)
    assert faults == {"truncated": {1}, "not finite": {2}, "unscored": {3}, "empty": {4, 25}}
    measured = curve(tmp_path, set().union(*faults.values()))
    assert measured == {"rollouts": 26, "reward": pytest.approx(0.8), "accuracy": 0.5}


SMALL = ["--data.rollouts_per_epoch=2", "--data.groups_per_rollout=4", "--data.val_samples=2"]
SMALL += ["--model.update.minibatch_size=8", "--model.update.critic_minibatch_size=8"]
SMALL += ["--model.update.micro_batch_size=8", "--data.sampling.max_new_tokens=24"]
SMALL += ["--callbacks.value_warmup.rollouts=1", "--data.val_task.limit=4"]


@pytest.mark.slow
def test_a_short_soak_says_what_it_did_not_measure_and_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv(soak.MARK, "")
    # a SIGTERM, a SIGKILL, and each kind of fault within eight rollouts
    soaked = [str(tmp_path), "--rollouts=40", "--longest=5", "--delay=0", "--rate=0.2"]
    for _ in range(2):
        with pytest.raises(SystemExit):
            main([*soaked, "--seed=182", *SMALL])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["soaked"]["rollouts"] == report["undisturbed"]["rollouts"] == 8
    ends = [row["status"] for row in read_rows(tmp_path / "lives.jsonl")]
    assert ends == [128 + signal.SIGTERM, -signal.SIGKILL, 0]
    assert report["faults"] == {"truncated": 2, "not finite": 1, "unscored": 1, "empty": 2}
    short = f"no process lived {LONG} rollouts, so that none could be measured"
    assert report["broken"][:2] == [short, short]
    assert not [line for line in report["broken"][2:] if line.startswith(("no ", "left"))]
