"""`scripts/soak.py`: what it calls a leak, and a run of a few rollouts."""

import json

import pytest

from lit_reason.jsonl import append_rows
from scripts.soak import WARM, leaks, main, usage


def life(process=1, **growth):
    """Ninety rollouts of a process whose use grows by so much with each."""
    rows = []
    for i in range(WARM + 90):
        now = {"memory": 2**29, "handles": 20, "children": 0}
        now |= {key: now[key] + each * i for key, each in growth.items()}
        rows.append({"rollout": i, "process": process, **now})
    return rows


@pytest.mark.parametrize(
    ("growth", "found"),
    [
        ({}, []),
        ({"memory": 2**20}, ["memory"]),
        ({"memory": -(2**20)}, ["memory"]),
        ({"handles": 1}, ["handles"]),
        ({"children": 1}, ["children"]),
    ],
)
def test_what_grows_in_a_process_is_a_leak(tmp_path, growth, found):
    append_rows(tmp_path / "usage.jsonl", [*life(), *life(process=2, **growth)])
    assert [leak.split()[0] for leak in leaks(tmp_path)] == found


def test_it_measures_this_process():
    with open(__file__) as one, open(__file__):
        two_open = usage()
        one.close()
        assert usage()["handles"] == two_open["handles"] - 1
    assert two_open["memory"] > 2**20


@pytest.mark.slow
def test_a_short_soak(tmp_path):
    small = ["--data.rollouts_per_epoch=2", "--data.groups_per_rollout=4", "--data.val_samples=2"]
    small += ["--model.update.minibatch_size=8", "--model.update.critic_minibatch_size=8"]
    small += ["--model.update.micro_batch_size=8", "--data.sampling.max_new_tokens=24"]
    small += ["--callbacks.value_warmup.rollouts=1", "--data.val_task.limit=4"]
    # one SIGKILL in the third of four rollouts, and no other fault
    main([str(tmp_path), "--rollouts=20", "--longest=3", "--delay=0", "--seed=25", *small])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["soaked"] == report["undisturbed"]
    assert report["soaked"]["rollouts"] == 4
    assert (report["signals"], report["broken"]) == (1, [])
