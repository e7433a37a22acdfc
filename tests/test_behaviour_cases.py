"""What has gone wrong in public trainers with configurations and data sets (G, H, I).

Cases of the other groups stand where their parts are tested, under their numbers.
"""

import csv
import json
from pathlib import Path

import pytest
import yaml

from lit_reason.callbacks import EntropyMonitor, OverlongFilter, SampleTable
from lit_reason.cli import run
from lit_reason.errors import ConfigWarning
from lit_reason.tasks import MathProblems
from tests.conftest import SMALL, config, fails, fit, tiny
from tests.test_ablations import parser


def parsed(*args):
    """The configuration that a command line gives, without building anything."""
    return parser().parse_args(["fit", config("vapo.yaml"), *args]).fit


def lr(configuration):
    return configuration.model.actor_optimizer.init_args.lr


def test_g01_two_trials_of_a_sweep_are_two_configurations(capsys):
    """As an agent writes them; every point of the shipped sweeps is in `test_ablations.py`."""
    rates = [lr(parsed(f"--model.actor_optimizer.lr={value}")) for value in ("1e-06", "5e-07")]
    assert rates == [1e-6, 5e-7]
    with pytest.raises(SystemExit):
        parsed("--model.actor_optimizer.lrr=1e-06")
    assert "no such key" in capsys.readouterr().err


def test_g02_later_wins_siblings_survive_and_no_dotted_key_appears():
    Path("a.yaml").write_text("data: {group_size: 4, max_rounds: 3}")
    Path("b.yaml").write_text("data: {group_size: 6}")
    for args, size in (
        (["--config=a.yaml", "--data.group_size=2"], 2),
        (["--data.group_size=2", "--config=a.yaml"], 4),
        (["--config=a.yaml", "--config=b.yaml"], 6),
    ):
        data = parsed(*args).data
        assert (data.group_size, data.max_rounds, data.val_samples) == (size, 3, 32)
        assert not [key for key in data.as_dict() if "." in key]


@pytest.mark.parametrize("text", ["1e-6", "1.0e-06"])
def test_g03_small_numbers_are_numbers(text):
    Path("a.yaml").write_text(f"model: {{actor_optimizer: {{init_args: {{lr: {text}}}}}}}")
    optional = f"--model.advantage.alpha={text}"
    model = parsed("--config=a.yaml", f"--model.critic_optimizer.lr={text}", optional).model
    parts = (model.actor_optimizer, model.critic_optimizer, model.advantage)
    for part, key in zip(parts, ("lr", "lr", "alpha"), strict=True):
        assert (type(part.init_args[key]), part.init_args[key]) == (float, 1e-6)


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        clocks = {"time/rollout", "tokens_per_second"}
        return [{k: v for k, v in r.items() if k not in clocks} for r in csv.DictReader(file)]


ONE = ["--data.rollouts_per_epoch=1", "--data.val_task.limit=2"]


def test_g04_a_run_is_not_written_over_and_its_configuration_reproduces_it(capsys):
    """Resuming is in `test_resume.py`, W&B without an account in `test_loggers.py`."""
    first = fit(*tiny("grpo"), *SMALL, *ONE, run_dir="first")
    before = {p: p.read_bytes() for p in first.rglob("*") if p.is_file()}
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--run_dir=first")
    assert "run_dir=first: already holds a run; choose another --run_dir, or continue it" in line
    assert {p: p.read_bytes() for p in first.rglob("*") if p.is_file()} == before
    again = fit(f"--config={first / 'config.yaml'}", run_dir="again")
    assert rows_of(again) == rows_of(first)


def test_g05_one_more_callback_keeps_the_others_and_their_order():
    """They act in the order of their names in the file, before the update reads the rollout."""
    start = {"overlong": "OverlongFilter", "entropy": "EntropyMonitor"}
    Path("a.yaml").write_text(yaml.safe_dump({"callbacks": start}, sort_keys=False))
    more = ["--callbacks.samples=SampleTable", "--callbacks.samples.rows=3"]
    found = parsed("--config=a.yaml", *more, "--callbacks.overlong.critic=false").callbacks
    classes = [callback.class_path.rpartition(".")[2] for callback in found.values()]
    assert classes == [c.__name__ for c in (OverlongFilter, EntropyMonitor, SampleTable)]
    assert found["overlong"].init_args.critic is False
    assert found["samples"].init_args.rows == 3


def test_g10_what_is_off_is_not_looked_at():
    """A length that is not given is the token budget; one that cannot be is refused below."""
    off = ["--callbacks.overlong=null", "--data.rewards.soft_overlong=null"]
    with pytest.warns(ConfigWarning, match=r"callbacks\.overlong=null: has no effect, there is no"):
        fit(*tiny("dapo"), *SMALL, *off, "--trainer.fast_dev_run=true")


def test_g10_what_is_on_needs_a_length_that_can_be(capsys):
    wide = "--data.rewards.soft_overlong.cache=33"  # of a budget of 32
    assert "cache=33" in fails(capsys, "fit", *tiny("dapo"), *SMALL, wide)


def test_g12_sizes_that_do_not_divide_name_options_values_and_a_choice(capsys):
    sizes = ["--data.groups_per_rollout=6", "--model.update.minibatch_size=7"]
    sizes += ["--model.update.micro_batch_size=5"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *sizes)
    assert "model.update.minibatch_size=7 does not divide data.groups_per_rollout" in line
    assert "= 24; choose one of 1, 2, 3, 4, 6, 8, 12, 24" in line


@pytest.mark.parametrize("source", ["my_math", ""])
def test_h05_an_unknown_source_is_a_name_and_the_scorer_the_same_for_all(source):
    """Nothing is dispatched by it; metrics are shown for each source."""
    row = {"problem": "1+1?", "answer": "2", "data_source": source}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    task = MathProblems("rows.jsonl")
    assert task[0].source == source
    assert [v.correct for v in task.judge([task[0]] * 2, ["\\boxed{2}", "\\boxed{3}"])] == [
        True,
        False,
    ]


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
def test_h05_accuracy_is_shown_for_each_source():
    """Of rows with a name and with an empty one, all scored by the same task."""
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1), "data_source": ""} for i in range(3)]
    rows[0]["data_source"] = "my_math"
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--data.val_task=MathProblems", "--data.val_task.path=rows.jsonl", "--run_dir=run"]
    flags += ["--data.val_task.limit=3", "--data.val_task.template={question} \\boxed{}"]
    with pytest.warns(ConfigWarning, match="characters that the tokenizer does not know"):
        values = run(["validate", *tiny("grpo"), *SMALL, *flags]).model.last_evaluation
    assert {"val/my_math/accuracy", "val/unnamed/accuracy"} <= set(values)


# I04 does not apply: a rank generates with weights of its own, without a collective in between.
# Under fsdp2 the policy is gathered before a rollout, other strategies that shard are refused
# (test_lint.py), and runs of two ranks whose responses differ in length are in test_distributed.py.
