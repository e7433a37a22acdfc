"""SIGKILL while generating, updating and writing: the run that continues ends with the same bits.

`scripts/kill_test.py` does the same at random moments of every algorithm.
"""

import pytest

from scripts.kill_test import Kill, main, torture


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    kills = [Kill("rollout", 4, 0.01), Kill("update", 2, 0.01), Kill("writing", 2, 0.001)]
    row = torture(tmp_path, "vapo", kills, rollouts=4)
    assert row["differences"] == []
    assert len(row["killed"]) == 3


def test_what_was_done_is_not_done_again(tmp_path, capsys):
    done = '{"algorithm": "grpo", "killed": ["update"], "differences": []}\n'
    (tmp_path / "results.jsonl").write_text(done)
    main([str(tmp_path), "--algorithms", "grpo"])
    assert capsys.readouterr().out == "grpo: killed 1 times (['update']), differences: none\n"


def test_a_difference_is_an_exit_status(tmp_path):
    done = '{"algorithm": "grpo", "killed": ["update"], "differences": ["epoch"]}\n'
    (tmp_path / "results.jsonl").write_text(done)
    with pytest.raises(SystemExit, match="1"):
        main([str(tmp_path), "--algorithms", "grpo"])
