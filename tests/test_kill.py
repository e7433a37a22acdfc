"""SIGKILL at any moment: the run that continues ends with the same bits.

`scripts/kill_test.py` does the same at random moments of every algorithm.
"""

import json
import random

import pytest
from lightning.pytorch import Callback

from scripts.kill_test import EXTRA, Kill, failures, main, plan, torture

KILL = {"doing": "writing", "rollout": 4, "last": True, "cut": True}
ROW = {"algorithm": "grpo", "planned": 2, "kills": [KILL], "resumed": 1, "differences": []}


class Forget(Callback):
    """What a run that does not restore its optimizers would do."""

    def on_train_start(self, trainer, pl_module):
        for optimizer in trainer.optimizers:
            optimizer.state.clear()


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    kills = [Kill("rollout", 1, 0.5), Kill("writing", 2, 0.5, rollout=2)]
    kills += [Kill("update", 1, 0.5, rollout=3), Kill("writing", 1, 0.5, rollout=4)]
    row = torture(tmp_path, "vapo", kills, rollouts=6)
    assert [kill["rollout"] for kill in row["kills"]] == [0, 2, 3, 4]
    assert [kill["last"] for kill in row["kills"]] == [False, False, True, True]
    assert [kill["cut"] for kill in row["kills"]] == [False, True, False, True]
    assert row["resumed"] == 2
    assert failures([row]) == []


@pytest.mark.slow
def test_a_run_that_forgets_its_optimizers_is_found(tmp_path):
    kills = [Kill("rollout", 1, 0.5), Kill("update", 1, 0.5, rollout=2)]
    forgetting = ["--callbacks.forget=tests.test_kill.Forget"]
    row = torture(tmp_path, "dapo", kills, rollouts=4, extra=forgetting)
    assert row["resumed"] == 1
    assert any(where.startswith("optimizer_states") for where in row["differences"])


@pytest.mark.parametrize("algorithm", EXTRA)
@pytest.mark.parametrize("kills", [1, 2, 5, 25])
def test_most_kills_come_after_a_checkpoint_and_half_of_them_cut_one_off(algorithm, kills):
    for seed in range(20):
        drawn = plan(random.Random(f"{seed} {algorithm}"), kills, rollouts=8)
        assert drawn == plan(random.Random(f"{seed} {algorithm}"), kills, rollouts=8)
        later = [kill for kill in drawn if kill.rollout > 2]
        assert len(drawn) == kills
        assert len(later) >= kills - (kills > 2)
        assert drawn[-1].moment == "writing"
        assert sum(kill.moment == "writing" for kill in later) >= kills // 2
        assert len(drawn) < 2 or drawn[1].moment != "starting"
        assert all(kill.rollout <= 6 and kill.delay < 1 for kill in drawn)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"differences": ["epoch", "global_step"]}, ["grpo: differs in epoch, global_step"]),
        ({"resumed": 0}, ["grpo: went on from a checkpoint 0 times of 1"]),
        ({"planned": 5}, ["grpo: went on from a checkpoint 1 times of 2"]),
        ({"kills": []}, ["no kill cut a checkpoint off while an earlier one was there"]),
        (
            {"kills": [{**KILL, "last": False}, {**KILL, "cut": False}]},
            ["no kill cut a checkpoint off while an earlier one was there"],
        ),
    ],
)
def test_what_differs_or_proves_nothing_is_a_failure(change, found):
    assert failures([{**ROW, **change}]) == found


def test_what_was_done_is_not_done_again(tmp_path, capsys):
    (tmp_path / "results.jsonl").write_text(json.dumps(ROW) + "\n")
    main([str(tmp_path), "--algorithms", "grpo"])
    assert capsys.readouterr().out == (
        "grpo: killed 1 times, went on from a checkpoint 1 times, differences: none\n"
        "    1 writing    after 4 rollouts, last.ckpt is there, a checkpoint is cut off\n"
    )


def test_a_failure_is_an_exit_status(tmp_path):
    (tmp_path / "results.jsonl").write_text(json.dumps({**ROW, "differences": ["epoch"]}) + "\n")
    with pytest.raises(SystemExit, match="grpo: differs in epoch"):
        main([str(tmp_path), "--algorithms", "grpo"])
