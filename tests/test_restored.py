"""Checkpoints that were tampered with, or written by something else: one line, before a rollout."""

import re
import shutil
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn, optim
from torch.optim import lr_scheduler as lr

from lit_reason.cli import run
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.optimizers import build_optimizer, build_schedule
from lit_reason.overrides import check_state
from lit_reason.restored_states import check_moments, settle_groups, settle_schedules
from tests.conftest import SMALL, fails, fit, tiny

GRPO = [
    *tiny("grpo"),
    *SMALL,
    "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR",
    "--trainer.limit_val_batches=0",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        fit(*GRPO, run_dir=folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return Path("run/checkpoints/last.ckpt")


def wrong_moment(saved):
    state = saved["optimizer_states"][0]["state"]
    state[0]["exp_avg"] = state[0]["exp_avg"][:-1].clone()


def wrong_weight(saved):
    saved["optimizer_states"][0]["state"][999] = {}


def moment(value, name="exp_avg", weight=3):
    def change(saved):
        saved["optimizer_states"][0]["state"][weight][name] = value

    return change


def without(*names):
    def drop(saved):
        for name in names:
            saved = saved[name] if name != names[-1] else saved
        del saved[names[-1]]

    return drop


def given(value, *names):
    def change(saved):
        for name in names[:-1]:
            saved = saved[name]
        saved[names[-1]] = value

    return change


def setting(value, name):
    def change(saved):
        saved["optimizer_states"][0]["param_groups"][0][name] = value

    return change


def of_schedules(states):
    return given(states, "lr_schedulers")


def nan_weight(saved):
    next(iter(saved["state_dict"].values()))[0] = torch.nan


def negative(saved):
    saved["optimizer_states"][0]["state"][3]["exp_avg_sq"].neg_()


def infinite(name):
    def change(saved):
        saved["optimizer_states"][0]["state"][3][name].fill_(torch.inf)

    return change


def weight(change):
    """Changes one weight of the actor."""

    def of(saved):
        name = next(name for name in saved["state_dict"] if name.startswith("actor."))
        saved["state_dict"][name] = change(saved["state_dict"][name])

    return of


def as_moment(change):
    def of(saved):
        state = saved["optimizer_states"][0]["state"][3]
        state["exp_avg"] = change(state["exp_avg"])

    return of


FIRST = ("optimizer_states", 0)
STEPS = ("loops", "fit_loop", "epoch_loop.manual_optimization.optim_step_progress")
PROGRESS = ("loops", "fit_loop", "epoch_loop.batch_progress")
# of the kinds of training alike
DAMAGED = {
    "holds weights that are not finite, the first in": nan_weight,
    "holds the states of 0 optimizers, and this configuration trains actor": given(
        [], "optimizer_states"
    ),
    "holds moments of 0 weights of the actor, and": given({}, *FIRST, "state"),
    "weights of the actor, and 38 were written": without(*FIRST, "state", 5),
    "its exp_avg of the actor's weight 5 is 'missing', no number": without(
        *FIRST, "state", 5, "exp_avg"
    ),
    "its step of the actor's weight 3 is 'x', no number": moment("x", "step"),
    "its step of the actor's weight 3 is True, no number": moment(True, "step"),
    "its step of the actor's weight 3 is nan": moment(torch.tensor(torch.nan), "step"),
    "its exp_avg of the actor's weight 3 has shape (2,), not": moment(torch.ones(2)),
    "its lr of the actor is 'x'": setting("x", "lr"),
    "its lr of the actor is nan": setting(float("nan"), "lr"),
    "its betas of the actor is (0.9,)": setting((0.9,), "betas"),
    "its param_groups of the actor are not of its weights": given([], *FIRST, "param_groups"),
    "its lr_schedulers are not the states of 1 schedules": of_schedules([]),
    "its last_epoch is 'x', expected a count": of_schedules([{"last_epoch": "x"}]),
    "its loops hold no epoch_progress.current": given({}, "loops"),
    "its loops hold no epoch_loop.batch_progress.total": without(*PROGRESS, "total"),
    "its processed is 'x', expected a count": given("x", *PROGRESS, "total", "processed"),
    "its state_dict is 3, not a dict": given(3, "loops", "fit_loop", "state_dict"),
    "its step of the actor's weight 3 is negative": moment(torch.tensor(-1.0), "step"),
    "its step of the actor's weight 3 is 1e+30, and": moment(1e30, "step"),
    "its param_groups of the actor are not of its weights; it was": given(
        [0] * 38, *FIRST, "param_groups", 0, "params"
    ),
    "optimizer are none (Invalid learning rate: -1.0)": setting(-1.0, "lr"),
    "its last_epoch is None, expected a count": of_schedules([{}]),
    "its last_epoch is 1000000000000000, expected a count": of_schedules([{"last_epoch": 10**15}]),
    "its lr_schedulers hold a 'step'": given("x", "lr_schedulers", 0, "step"),
    "its global_step is 'x', expected a count": given("x", "global_step"),
    "its moments are 3, not a dict": given(3, "moments"),
    "its loops are a list, not a dict": given([], "loops"),
    "its callbacks are a list, not a dict": given([], "callbacks"),
    "holds no callbacks, the states of callbacks": without("callbacks"),
    "holds no loops, the epoch": without("loops"),
}
SUMMARY = ("callbacks", "RunSummary", "before")
EMBEDDING = "actor.model.embed_tokens.weight"
REFUSED = {
    f"its {EMBEDDING} is torch.int64, not torch.float32": weight(torch.Tensor.long),
    f"its {EMBEDDING} is torch.complex64, not torch.float32": weight(torch.Tensor.cfloat),
    f"its {EMBEDDING} is torch.float16, not torch.float32": weight(torch.Tensor.half),
    f"its {EMBEDDING} is no plain tensor": weight(torch.Tensor.to_sparse),
    f"its {EMBEDDING} has the shape (22, 64), not (23, 64); give the": weight(lambda w: w[1:]),
    "holds actor.more, which the network lacks; give the configuration": given(
        torch.ones(1), "state_dict", "actor.more"
    ),
    "lacks 1 weights of the actor, like actor.model.embed": without("state_dict", EMBEDDING),
    "its exp_avg of the actor's weight 3 is no plain tensor": as_moment(torch.Tensor.to_sparse),
    "its exp_avg of the actor's weight 3 is torch.complex64": as_moment(torch.Tensor.cfloat),
    "its exp_avg of the actor's weight 3 is torch.int64": as_moment(torch.Tensor.long),
    "its step of the actor's weight 3 is torch.bool": moment(torch.tensor(True), "step"),
    "its exp_avg_sq of the actor's weight 3 is negative": negative,
    "its exp_avg_sq of the actor's weight 3 is infinite": infinite("exp_avg_sq"),
    "its exp_avg of the actor's weight 3 is infinite": infinite("exp_avg"),
    "its exp_avg of the actor's weight 3 has shape ()": moment(0.5),
    "its step of the actor's weight 3 is infinite": moment(torch.tensor(torch.inf), "step"),
    "its step of the actor's weight 3 is 5.0, and its run has taken 4 steps": moment(5, "step"),
    "optimizer are none (Invalid epsilon value: -1)": setting(-1, "eps"),
    "optimizer are none (Invalid beta parameter at index 0: 5.0)": setting((5.0, 7.0), "betas"),
    "its lr_schedulers hold a 'optimizer'": given("x", "lr_schedulers", 0, "optimizer"),
    "its _last_lr of a schedule is 'x'": given("x", "lr_schedulers", 0, "_last_lr"),
    "its actor is 'x', expected a count": given({"actor": "x"}, "nonfinite"),
    "its nonfinite is 3, not a dict": given(3, "nonfinite"),
    "its global_step is 5, and its loops have counted 4 steps": given(5, "global_step"),
    "its completed is 'x', expected a count": given("x", *STEPS, "total", "completed"),
    f"its cursor is {10**18}, and its loops": given(10**18, "RolloutDataModule", "cursor"),
    "its exp_avg of the actor's weight 0 has shape": wrong_moment,
    "holds a state of the actor's weight 999, and there are": wrong_weight,
    "its optimizer_states are no states of optimizers": given([1], "optimizer_states"),
    "its policy_version is 'x', expected a count": given("x", "policy_version"),
    "its policy_version is True, expected a count": given(True, "policy_version"),
    "its cursor is 'x', expected a count": given("x", "RolloutDataModule", "cursor"),
    "its cursor is None, expected a count": without("RolloutDataModule", "cursor"),
    "holds no RolloutDataModule, the place in the problems": without("RolloutDataModule"),
    "its policy_version is 1, and its loops have trained on 2 batches": given(1, "policy_version"),
    "its policy_version is 1000000000, and its loops": given(10**9, "policy_version"),
    "its cursor is 0, and its loops have trained on": given(0, "RolloutDataModule", "cursor"),
    f"its cursor is {10**30}, expected a count": given(10**30, "RolloutDataModule", "cursor"),
    "holds no policy_version, the number of rollouts": without("policy_version"),
    "holds no optimizer_states": without("optimizer_states"),
    "holds no state_dict": without("state_dict"),
    "before in the state of RunSummary is 'zzz', expected a dict": given("zzz", *SUMMARY),
    "its before is {'val/accuracy': 'x'}, expected numbers": given({"val/accuracy": "x"}, *SUMMARY),
    "its stepped is ['foo', 3], no networks": given(["foo", 3], "stepped"),
    "the configuration that it holds is none": given(
        {"config": "a: ["}, "callbacks", "RecordConfig"
    ),
}


def tamper(path, change):
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)


@pytest.mark.parametrize("message", DAMAGED | REFUSED)
def test_a_checkpoint_from_which_a_run_would_not_go_on_is_one_line(message, copied, capsys):
    tamper(copied, (DAMAGED | REFUSED)[message])
    before = Path("run/config.yaml").read_bytes()
    end = ["--run_dir=run", "--trainer.max_epochs=2"]
    line = fails(capsys, "fit", *GRPO, f"--ckpt_path={copied}", *end)
    assert message in line
    assert Path("run/config.yaml").read_bytes() == before


def test_what_the_configuration_says_is_not_taken_from_the_checkpoint(copied):
    def change(saved):
        (group,) = saved["optimizer_states"][0]["param_groups"]
        group |= {"maximize": True, "betas": (0.1, 0.1), "weight_decay": 0.5, "initial_lr": 1.0}
        saved["lr_schedulers"][0]["total_iters"] = -3

    tamper(copied, change)
    fit(*GRPO, f"--ckpt_path={copied}", "--trainer.max_epochs=2")
    saved = torch.load(copied, weights_only=True)
    (group,) = saved["optimizer_states"][0]["param_groups"]
    assert (group["maximize"], group["betas"], group["weight_decay"]) == (False, (0.9, 0.999), 0.0)
    assert group["initial_lr"] == 3e-4
    assert saved["lr_schedulers"][0]["total_iters"] == 5
    assert saved["lr_schedulers"][0]["last_epoch"] == 4


# --- states that runs do write, of which none may be refused --------------------------------------

OPTIMIZERS = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD with momentum": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adafactor": optim.Adafactor,
    "Adagrad": optim.Adagrad,
    "RMSprop": partial(optim.RMSprop, centered=True, momentum=0.5),
    "Rprop": optim.Rprop,
    "NAdam": partial(optim.NAdam, decoupled_weight_decay=True),
    "ASGD": optim.ASGD,
    "Adamax": optim.Adamax,
    "RAdam": optim.RAdam,
    "Adadelta": optim.Adadelta,
    "AdamW, amsgrad": partial(optim.AdamW, amsgrad=True),
    "AdamW, fused": partial(optim.AdamW, fused=True),
    "AdamW, foreach": partial(optim.AdamW, foreach=True),
    "rates as tensors": partial(optim.AdamW, lr=torch.tensor(0.1), foreach=False),
    "groups": lambda w: optim.AdamW([{"params": w[:1]}, {"params": w[1:], "weight_decay": 0.5}]),
}


def sequence(optimizer):
    parts = [
        lr.LinearLR(optimizer),
        lr.CosineAnnealingLR(optimizer, 3),
        lr.ExponentialLR(optimizer, 0.9),
    ]
    return lr.SequentialLR(optimizer, parts, milestones=[2, 6])


def chain(optimizer):
    return lr.ChainedScheduler([lr.LinearLR(optimizer), lr.MultiStepLR(optimizer, [1, 1, 4])])


KINDS = {
    "OneCycleLR": partial(lr.OneCycleLR, max_lr=0.1, total_steps=9),
    "MultiStepLR": partial(lr.MultiStepLR, milestones=[1, 1, 4]),
    "LambdaLR": partial(lr.LambdaLR, lr_lambda=lambda n: 0.5**n),
    "MultiplicativeLR": partial(lr.MultiplicativeLR, lr_lambda=lambda n: 0.5),
    "restarts": partial(lr.CosineAnnealingWarmRestarts, T_0=2, T_mult=2),
    "CyclicLR": partial(lr.CyclicLR, base_lr=0.01, max_lr=0.1, cycle_momentum=False),
    "to 0": partial(lr.LinearLR, start_factor=0.3, end_factor=0.0, total_iters=7),
    "SequentialLR": sequence,
    "ChainedScheduler": chain,
}


def stand_in(optimizer, schedule=None):
    """A module of two weights, its trained state after 8 steps, and the same as it would begin."""
    weights = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))]
    return SimpleNamespace(
        trained=["actor"],
        weights=lambda network: weights,
        optimizer_factories={"actor": optimizer},
        scheduler_factories={"actor": schedule},
        optimizer_key=lambda network: "model.actor_optimizer",
        scheduler_key=lambda network: "model.actor_scheduler",
    )


def trained_states(module, steps=8):
    """What a checkpoint holds after some steps."""
    weights = module.weights("actor")
    optimizer = build_optimizer(module, "actor", weights)
    schedule = build_schedule(module, "actor", optimizer)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    states = [optimizer.state_dict()], [] if schedule is None else [schedule.state_dict()]
    torch.save(states, "states.pt")
    return torch.load("states.pt", weights_only=True)


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        *((kind, None) for kind in OPTIMIZERS),
        *(("AdamW, foreach", kind) for kind in KINDS),
        ("SGD with momentum", "OneCycleLR"),
        ("Adafactor", "LambdaLR"),
    ],
)
@pytest.mark.parametrize("steps", [0, 1, 7, 8])
def test_states_that_a_run_writes_are_taken_as_they_are(optimizer, schedule, steps):
    module = stand_in(OPTIMIZERS[optimizer], KINDS.get(schedule))
    states, schedules = trained_states(module, steps)
    before = deepcopy(states[0]["param_groups"]), str(schedules)
    check_moments(module, states, steps)
    settle_groups(module, states)
    check_state(module, states, {})
    settle_schedules(module, schedules, steps)
    assert (states[0]["param_groups"], str(schedules)) == before


@pytest.mark.parametrize(
    ("schedule", "moved"),
    [(None, []), ("LambdaLR", ["lr"]), ("OneCycleLR", ["betas", "lr"]), ("SequentialLR", ["lr"])],
)
def test_numbers_that_no_schedule_moves_are_those_of_the_configuration(schedule, moved):
    module = stand_in(OPTIMIZERS["AdamW, foreach"], KINDS.get(schedule))
    states, _ = trained_states(module)
    before = deepcopy(states[0]["param_groups"])
    (group,) = states[0]["param_groups"]
    changed = {"lr": 0.5, "betas": (0.1, 0.1), "eps": 0.1, "weight_decay": 0.5}
    changed |= {k: 1.0 for k in ("initial_lr", "max_lr", "min_lr") if k in group}
    group |= changed
    settle_groups(module, states)
    assert [k for k in sorted(group) if group[k] != before[0][k]] == moved


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_second_moments_of_no_optimizer_are_negative_and_none_is_infinite(kind):
    module = stand_in(OPTIMIZERS[kind])
    states, _ = trained_states(module)
    for name, value in states[0]["state"].get(0, {}).items():
        if value is None:
            continue
        changed = deepcopy(states)
        changed[0]["state"][0][name] = torch.full_like(torch.as_tensor(value), torch.inf)
        with pytest.raises(ConfigError, match=f"its {name} of the actor's weight 0 is infinite"):
            check_moments(module, changed, 8)


MISTAKES = {  # what a new run would say
    "optimizer.lr=-1": "optimizer.lr=-1.0: must be at least 0",
    "optimizer.lr=1e400": "optimizer.lr=inf: must be finite",
    "optimizer.weight_decay=1e400": "optimizer.weight_decay=inf: must be finite",
    "optimizer.betas=[0.5, 1.6]": "optimizer.betas=1.6: each must be at least 0 and below 1",
}


@pytest.mark.parametrize("flag", MISTAKES)
def test_a_mistake_that_is_given_on_resuming_is_not_blamed_on_the_checkpoint(flag, copied, capsys):
    on = ["--config=run/config.yaml", "--run_dir=run", "--ckpt_path=last", f"--model.actor_{flag}"]
    line = fails(capsys, "fit", *on, "--trainer.max_epochs=2")
    assert line == f"error: model.actor_{MISTAKES[flag]}"


def test_an_optimizer_that_took_no_step_yet_has_no_moments_to_miss():
    """The actor's, while only the critic trains."""
    args = [*tiny("vapo"), *SMALL, "--data.rollouts_per_epoch=1", "--trainer.limit_val_batches=0"]
    args += ["--callbacks.value_warmup.rollouts=1"]
    with pytest.warns(ConfigWarning, match="so the policy does not train"):
        last = fit(*args) / "checkpoints" / "last.ckpt"
    moments = torch.load(last, weights_only=True)["moments"]
    assert moments["actor"] == 0 < moments["critic"]
    fit(*args, "--ckpt_path=last", "--trainer.max_epochs=2")
    saved = torch.load(last, weights_only=True)
    assert saved["policy_version"] == 2
    assert min(saved["moments"].values()) > 0


def test_a_schedule_for_a_run_that_had_none_is_one_line(copied, capsys):
    saved = torch.load(copied, weights_only=True)
    text = saved["callbacks"]["RecordConfig"]["config"]
    own = yaml.safe_load(text)
    own["model"]["actor_scheduler"] = None
    tamper(copied, given({"config": yaml.safe_dump(own)}, "callbacks", "RecordConfig"))
    line = fails(capsys, "fit", *GRPO, f"--ckpt_path={copied}", "--run_dir=run")
    assert "LinearLR: the checkpoint was written without one; set it to null, or" in line
    off = "--model.actor_scheduler=null"
    tamper(copied, given({"config": text}, "callbacks", "RecordConfig"))
    line = fails(capsys, "fit", *GRPO, off, f"--ckpt_path={copied}", "--run_dir=run")
    assert re.search(r"model\.actor_scheduler=null: .* state of \S*LinearLR; continue with", line)


def test_a_checkpoint_that_was_cut_off_is_said_to_be(copied, capsys):
    copied.write_bytes(copied.read_bytes()[:-1000])
    line = fails(capsys, "fit", *GRPO, "--ckpt_path=last", "--run_dir=run")
    assert re.search(
        r"last\.ckpt: cannot be read \(File is not a zip file\), the file was cut", line
    )


@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_another_optimizer_does_not_matter_to_an_evaluation(copied):
    run(["validate", *GRPO[:-1], "--model.actor_optimizer=SGD", f"--ckpt_path={copied}"])


def test_a_checkpoint_without_a_configuration_is_warned_of(copied):
    tamper(copied, without("callbacks", "RecordConfig"))
    end = ["--run_dir=run", "--trainer.max_epochs=2"]
    with pytest.warns(ConfigWarning, match=r"ckpt_path=\S+: does not say with which config"):
        run(["fit", *GRPO, f"--ckpt_path={copied}", *end])


@pytest.mark.parametrize(
    "content", [{"a": 1}, [1, 2], torch.ones(2)], ids=["dict", "list", "tensor"]
)
@pytest.mark.parametrize("subcommand", ["fit", "validate"])
def test_a_file_that_is_no_checkpoint_of_a_run_is_one_line(subcommand, content, capsys):
    torch.save(content, "other.ckpt")
    fails(capsys, subcommand, *GRPO, "--ckpt_path=other.ckpt", "--run_dir=new")
