"""Callbacks with a state: of the package, of Lightning, and of the user's own."""

import csv
import sys
from pathlib import Path

import pytest
import torch

from lit_reason.__main__ import main
from lit_reason.errors import ConfigError
from lit_reason.plain import check_plain
from tests.conftest import SMALL, fails, fit, tiny
from tests.test_restored import tamper

GRPO = [*tiny("grpo"), *SMALL]
LAST = Path("run/checkpoints/last.ckpt")
CONTINUE = ["fit", "--config=run/config.yaml", "--ckpt_path=last"]
# the accuracy of these few problems and updates does not move, so that patience is all that counts
STANDS = [
    *GRPO,
    "--model.actor_optimizer.lr=1e-12",
    "--callbacks.es=EarlyStopping",
    "--callbacks.es.monitor=val/accuracy",
    "--callbacks.es.mode=max",
    "--callbacks.es.patience=1",
    "--trainer.max_epochs=5",
]


def rollouts(run_dir="run"):
    with Path(run_dir, "metrics.csv").open() as file:
        return [int(float(row["rollout"])) for row in csv.DictReader(file) if row["reward"]]


def held(name):
    states = torch.load(LAST, weights_only=True)["callbacks"]
    return next(state for key, state in states.items() if key.startswith(name))


def test_another_patience_of_early_stopping_applies(capsys):
    fit(*STANDS)
    assert rollouts()[-1] == 4  # the epoch after the first
    main([*CONTINUE, "--callbacks.es.patience=3"])
    assert "changed on resuming: callbacks.es.patience=3, was 1" in capsys.readouterr().out
    assert rollouts() == list(range(1, 9))
    assert held("EarlyStopping")["patience"] == 3
    main(CONTINUE)  # as config.yaml says now
    assert rollouts() == list(range(1, 11))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("wait_count", "x", "wait_count in the state of EarlyStopping is 'x', expected a number"),
        ("patience", None, "patience in the state of EarlyStopping is None, expected a number"),
        ("best_score", 3, "best_score in the state of EarlyStopping is 3, expected a Tensor"),
    ],
)
def test_a_state_of_another_form_is_one_line_before_anything_trains(key, value, message, capsys):
    fit(*STANDS, "--trainer.max_epochs=1")
    name = next(k for k in torch.load(LAST, weights_only=True)["callbacks"] if "Early" in k)
    before = Path("run/metrics.csv").read_bytes()
    tamper(LAST, lambda saved: saved["callbacks"][name].__setitem__(key, value))
    assert message in fails(capsys, *CONTINUE, "--trainer.max_epochs=2")
    assert Path("run/metrics.csv").read_bytes() == before


def test_the_state_of_a_critics_pretraining_too(capsys):
    fit(*tiny("value_pretrain"), *SMALL)
    tamper(LAST, lambda saved: saved["callbacks"]["ValuePretraining"].__setitem__("best", "x"))
    line = fails(capsys, *CONTINUE, "--trainer.max_epochs=2")
    assert "best in the state of ValuePretraining is 'x', expected a number" in line


# --- states of the user's own ---------------------------------------------------------------------

OWN = """
from pathlib import Path
from lightning.pytorch import Callback

class Keeps(Callback):
    def __init__(self, what: str = "1.5", every: int = 2):
        self.what, self.every, self.seen = what, every, []

    def state_dict(self):
        return {"kept": eval(self.what), "every": self.every, "seen": self.seen}

    def load_state_dict(self, state):
        self.every, self.seen = state["every"], state["seen"]

    def on_train_batch_end(self, trainer, module, *_):
        if module.policy_version % self.every == 0:
            self.seen = [*self.seen, module.policy_version]
"""


@pytest.fixture
def own_part(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("keeps.py").write_text(OWN)
    sys.modules.pop("keeps", None)


@pytest.mark.usefixtures("own_part")
@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("__import__('numpy').float64(1)", "numpy.float64"),
        ("Path('x')", f"{type(Path()).__module__}.PosixPath"),
        ("print", "builtin_function_or_method"),
        ("Callback()", "lightning.pytorch.callbacks.callback.Callback"),
    ],
)
def test_a_state_that_would_not_be_read_again_ends_the_run_at_once(what, kind, capsys):
    line = fails(capsys, "fit", *GRPO, "--callbacks.k=keeps.Keeps", f"--callbacks.k.what={what}")
    assert line == (
        f"error: trainer: callbacks.Keeps.kept in the state of the run is a {kind}, which is not "
        "read again from a checkpoint without running code; let the state hold numbers, texts, "
        "lists and tensors"
    )


@pytest.mark.usefixtures("own_part")
def test_a_plain_state_is_kept_and_a_changed_setting_in_it_applies():
    own = ["--callbacks.k=keeps.Keeps", "--callbacks.k.what=[1, (2.5, 'x'), {'a': None}]"]
    fit(*GRPO, *own, "--trainer.max_epochs=2")
    assert held("Keeps")["kept"] == [1, (2.5, "x"), {"a": None}]
    main([*CONTINUE, "--trainer.max_epochs=3", "--callbacks.k.every=3"])
    assert held("Keeps")["every"] == 3
    assert held("Keeps")["seen"] == [2, 4, 6]


def test_the_part_that_is_not_plain_is_named_in_lists_too():
    check_plain({"a": [1, {"b": torch.ones(1)}, None]})
    with pytest.raises(ConfigError, match=r"trainer: a\.1\.b in the state of the run is a object"):
        check_plain({"a": [1, {"b": object()}]})


# --- averages of weights --------------------------------------------------------------------------


def test_an_average_of_the_weights_goes_on_beside_a_reference():
    args = [*GRPO, "--callbacks.ema=EMAWeightAveraging", "--callbacks.ema.decay=0.5"]
    fit(*args, "--trainer.max_epochs=2", run_dir="whole")
    fit(*args)
    main([*CONTINUE, "--trainer.max_epochs=2"])
    ends = [
        torch.load(Path(run, "checkpoints/last.ckpt"), weights_only=True)
        for run in ("whole", "run")
    ]
    for part in ("state_dict", "current_model_state", "averaging_state"):
        assert ends[0][part].keys() == ends[1][part].keys()
        assert all(torch.equal(value, ends[1][part][key]) for key, value in ends[0][part].items())
        assert not [key for key in ends[0][part] if key.startswith("reference.")]
    apart = [
        key
        for key, value in ends[0]["state_dict"].items()
        if not torch.equal(value, ends[0]["current_model_state"][key])
    ]
    assert apart


@pytest.mark.parametrize(
    ("callback", "flags", "hint"),
    [
        ("StochasticWeightAveraging", ["swa_lrs=1e-3"], "EMAWeightAveraging averages weights"),
        ("GradientAccumulationScheduler", ["scheduling={0: 2}"], "leave it out"),
        ("LearningRateFinder", [], "leave it out"),
        ("BatchSizeFinder", [], "leave it out"),
        ("SpikeDetection", [], "leave it out"),
    ],
)
def test_callbacks_that_act_on_lightnings_own_steps_are_refused(callback, flags, hint, capsys):
    args = [f"--callbacks.l={callback}", *(f"--callbacks.l.{flag}" for flag in flags)]
    line = fails(capsys, "fit", *GRPO, *args, "--run_dir=run")
    assert line.startswith(f"error: callbacks.l={callback}: acts on steps that Lightning takes")
    assert hint in line
    assert not Path("run").exists()


# --- what config.yaml does not keep ---------------------------------------------------------------


def test_the_configuration_of_a_run_that_was_continued_repeats_it_from_the_start():
    fit(*GRPO)
    main([*CONTINUE, "--trainer.max_epochs=2"])
    assert "\nckpt_path: null\n" in Path("run/config.yaml").read_text()
    fit("--config=run/config.yaml", run_dir="again")
    assert rollouts("again") == rollouts("run") == [1, 2, 3, 4]
    assert Path("again/samples.jsonl").read_bytes() == Path("run/samples.jsonl").read_bytes()
