"""Settings that change while a run goes on: what a schedule does then is what one anew would do."""

import shutil
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim import lr_scheduler as lr

from lit_reason.backbones import ASSETS
from lit_reason.cli import run
from lit_reason.errors import ConfigError
from lit_reason.overrides import changes, check_changes, renew, replay, steps_of
from scripts.kill_test import arguments, compare
from tests.conftest import SMALL, fails, fit, tiny

RATE = 0.01


def warmed(optimizer, warm, rest):
    """A warm-up, and a decay after it."""
    parts = [lr.LinearLR(optimizer, 0.1, total_iters=warm), lr.ExponentialLR(optimizer, rest)]
    return lr.SequentialLR(optimizer, parts, milestones=[warm])


def chained(optimizer, warm, rest):
    parts = [lr.LinearLR(optimizer, 0.1, total_iters=warm), lr.ExponentialLR(optimizer, rest)]
    return lr.ChainedScheduler(parts)


# the schedule of the earlier part, that of the later one, steps of the earlier part
SCHEDULES = {
    "slower warm-up": (partial(lr.LinearLR, total_iters=4), {"total_iters": 8}, 2),
    "another start": (partial(lr.LinearLR, total_iters=4), {"start_factor": 0.5}, 2),
    "longer decay": (
        partial(lr.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=35),
        {"total_iters": 70},
        30,
    ),
    "decay that would be over": (
        partial(lr.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=70),
        {"total_iters": 20},
        30,
    ),
    "constant": (partial(lr.ConstantLR, factor=0.1, total_iters=5), {"factor": 0.5}, 3),
    "cosine": (partial(lr.CosineAnnealingLR, T_max=20), {"T_max": 40, "eta_min": 1e-4}, 7),
    "restarts": (partial(lr.CosineAnnealingWarmRestarts, T_0=5), {"T_0": 7}, 8),
    "step": (partial(lr.StepLR, step_size=4), {"step_size": 6, "gamma": 0.5}, 9),
    "steps": (partial(lr.MultiStepLR, milestones=[3, 6]), {"milestones": [4, 12]}, 7),
    "exponential": (partial(lr.ExponentialLR, gamma=0.9), {"gamma": 0.99}, 10),
    "polynomial": (partial(lr.PolynomialLR, total_iters=20), {"total_iters": 40, "power": 2.0}, 9),
    "one cycle": (
        partial(lr.OneCycleLR, max_lr=0.1, total_steps=60),
        {"max_lr": 0.3, "pct_start": 0.5},
        9,
    ),
    "cyclic": (
        partial(lr.CyclicLR, base_lr=0.001, max_lr=0.1, step_size_up=5),
        {"max_lr": 0.2, "step_size_up": 7},
        8,
    ),
    "lambda": (partial(lr.LambdaLR, lr_lambda=lambda n: 0.5**n), {"lr_lambda": lambda n: 1.0}, 3),
    "sequential, in the first part": (partial(warmed, warm=4, rest=0.9), {"warm": 8}, 2),
    "sequential, after it": (partial(warmed, warm=4, rest=0.9), {"warm": 8, "rest": 0.8}, 6),
    "chained": (partial(chained, warm=4, rest=0.9), {"warm": 8, "rest": 0.8}, 6),
}


def weight():
    return nn.Parameter(torch.ones(3))


def advance(optimizer, schedule, steps):
    """The settings that the optimizer steps with, step by step."""
    seen = []
    for _ in range(steps):
        (group,) = optimizer.param_groups
        seen.append({k: group[k] for k in ("lr", "betas", "momentum") if k in group})
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("kind", [AdamW, partial(SGD, momentum=0.9)], ids=["AdamW", "SGD"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_changed_schedule_goes_on_as_one_that_began_with_its_settings(name, kind):
    earlier, changed, steps = SCHEDULES[name]
    later = partial(earlier, **changed)
    optimizer = kind([weight()], lr=RATE)
    schedule = earlier(optimizer)
    advance(optimizer, schedule, steps)
    (state,) = optimizer.state.values()
    kept = {k: v.clone() for k, v in state.items()}

    anew = kind([weight()], lr=RATE)
    expected = advance(anew, later(anew), steps + 15)[steps:]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renew(optimizer, kind([*optimizer.param_groups[0]["params"]], lr=RATE))
        schedule = replay(later, optimizer, steps_of(schedule))
        (state,) = optimizer.state.values()
        assert all(torch.equal(state[k], v) for k, v in kept.items())
        assert advance(optimizer, schedule, 15) == expected


def test_a_changed_rate_is_scaled_by_the_schedule_and_settings_of_each_group_are_kept():
    weights = [weight(), weight()]

    def build(rate):
        groups = [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.5}]
        return AdamW(groups, lr=rate, weight_decay=0.0)

    optimizer = build(RATE)
    schedule = lr.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    schedule.step()
    renew(optimizer, build(2 * RATE))
    replay(partial(lr.ExponentialLR, gamma=0.5), optimizer, steps_of(schedule))
    assert [g["lr"] for g in optimizer.param_groups] == [RATE, RATE]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.0, 0.5]
    assert [g["params"] for g in optimizer.param_groups] == [weights[:1], weights[1:]]


# --- the command line -----------------------------------------------------------------------------

ONE_CYCLE = [
    *tiny("grpo"),
    *SMALL,
    "--model.actor_optimizer.lr=1e-3",
    "--model.actor_scheduler=torch.optim.lr_scheduler.OneCycleLR",
    "--model.actor_scheduler.max_lr=1e-3",
    "--model.actor_scheduler.total_steps=10",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two rollouts."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        fit(*ONE_CYCLE, run_dir=folder)
    return folder


@pytest.fixture
def continued(finished, tmp_path):
    """The arguments that continue a copy of the run."""
    shutil.copytree(finished, tmp_path / "run")
    of = ["--config=run/config.yaml", "--run_dir=run", "--ckpt_path=last"]
    return ["fit", *of, "--trainer.max_epochs=2"]


def test_another_peak_of_a_cycle_applies(continued, capsys):
    given = ["--model.actor_scheduler.max_lr=2e-3", "--model.actor_scheduler.pct_start=0.5"]
    cli = run([*continued, *given])
    assert "changed on resuming: model.actor_scheduler.max_lr=0.002, was 0.001" in (
        capsys.readouterr().out
    )
    (config,) = cli.trainer.lr_scheduler_configs
    anew = lr.OneCycleLR(AdamW([weight()], lr=1e-3), max_lr=2e-3, total_steps=10, pct_start=0.5)
    for _ in range(4):
        anew.optimizer.step()
        anew.step()
    assert config.scheduler.get_last_lr() == anew.get_last_lr()
    (optimizer,) = cli.trainer.optimizers
    assert config.scheduler.optimizer is optimizer
    assert len({float(state["step"]) for state in optimizer.state.values()}) == 1


def test_a_reference_that_is_no_longer_refreshed_stays_where_it_was():
    flags = ["--model.terms.kl.coef=1.0", "--model.actor_optimizer.lr=3e-3"]
    fit(*arguments("grpo", rollouts=2), *flags, "--model.reference_refresh=1")
    shutil.copytree("run", "whole")
    for folder, lengths in {"whole": [6], "run": [4, 6]}.items():
        for length in lengths:
            kept = ["--model.reference_refresh=null", "--ckpt_path=last"]
            fit(*arguments("grpo", length), *flags, *kept, run_dir=folder)
    assert compare(Path("whole"), Path("run"), rollouts=6) == []


BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))
NONE = ["a: [", "- a", "a: &a [*a]", f"a: &a [x]\n{BOMB}", "[" * 10**5, "a: !!int ''"]


@pytest.mark.parametrize("text", NONE)
def test_a_text_that_is_no_configuration_is_refused(text):
    with pytest.raises(ConfigError, match="the configuration that it holds is none; it"):
        changes(text, "a: 1")


def test_a_setting_that_needs_another_state_is_refused_before_anything_runs(continued, capsys):
    with pytest.raises(SystemExit):
        run([*continued, "--model.actor_optimizer.amsgrad=true"])
    printed = capsys.readouterr()
    assert "model.actor_optimizer.amsgrad=True: needs 'max_exp_avg_sq', which" in printed.err
    assert "set it to False" in printed.err
    assert "changed on resuming" not in printed.out


SCRATCH = [*tiny("ppo"), *SMALL, "--model.backbone=Scratch", "--model.kl_in_reward=0.1"]
SCRATCH += ["--model.backbone.alphabet=0123456789+=(),aimnx"]
STARTS = {
    "seed=1": "model.backbone.seed=1: the networks began with 0 and go on from the checkpoint; set",
    "critic_init=random": "critic_init=random: the networks began with policy and go on",
    "heads=4": "model.backbone: is not of the architecture that the checkpoint was trained in; ",
    "layers=4": "model.backbone: is not of the architecture that the checkpoint was trained in; ",
    "alphabet=+=(),aimnx0123456789": "model.backbone: has not the vocabulary",
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A run of two rollouts of a new model."""
    folder = tmp_path_factory.mktemp("scratch") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        fit(*SCRATCH, run_dir=folder)
    return folder


@pytest.mark.parametrize("flag", STARTS)
def test_another_start_of_the_networks_is_refused(flag, scratch, capsys):
    shutil.copytree(scratch, "run")
    on = ["--ckpt_path=last", "--trainer.max_epochs=2", "--run_dir=run"]
    assert STARTS[flag] in fails(capsys, "fit", *SCRATCH, f"--model.backbone.{flag}", *on)


PATH = ASSETS / "plan_count"


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("critic_init", "critics/a", "policy"),  # its folder may be gone
        ("critic_init", "critics/a", "b"),
        ("path", "a", "b"),
        ("gradient_checkpointing", "False", "True"),
        ("new_in_this_version", "unset", "1"),
        ("", "parts.Own", "package.parts.Own"),
    ],
)
def test_what_may_change_of_a_backbone_is_not_refused(key, old, new):
    check_changes({f"model.backbone.{key}".rstrip("."): (old, new)})


def test_another_class_of_backbone_is_refused(continued, capsys):
    line = fails(capsys, *continued, "--model.backbone=Pretrained", f"--model.backbone.path={PATH}")
    assert "model.backbone=lit_reason.backbones.Pretrained: the networks began with" in line


def test_a_model_that_moved_is_taken_and_a_reference_of_other_weights_warned_of(recwarn):
    args = [*tiny("grpo"), *SMALL, "--model.backbone=Pretrained", "--data.rollouts_per_epoch=1"]
    fit(*args, f"--model.backbone.path={PATH}")
    file = Path(shutil.copytree(PATH, "moved"), "model.safetensors")
    text = "its weights are not those that the run began with, and the reference has changed"
    for epochs, changes_weights in {2: False, 3: True}.items():
        if changes_weights:
            weights = {k: 1.5 * v for k, v in load_file(file).items()}
            save_file(weights, file, {"format": "pt"})
        recwarn.clear()
        on = ["--ckpt_path=last", f"--trainer.max_epochs={epochs}"]
        fit(*args, "--model.backbone.path=moved", *on)
        assert any(text in str(w.message) for w in recwarn) == changes_weights


SHARED = [*tiny("ppo"), *SMALL, "--data.rollouts_per_epoch=1", "--model.actor_optimizer.lr=1e-3"]
OWN = ["--model.critic_optimizer=torch.optim.AdamW", "--model.critic_optimizer.lr=1e-2"]


@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_an_optimizer_of_the_critics_own_goes_on_from_the_moments_of_a_shared_one(capsys):
    steps = []
    for epochs, own, rate in [(1, [], 1e-3), (2, OWN, 1e-2), (3, [], 1e-3)]:
        on = ["--ckpt_path=last"] if epochs > 1 else []
        fit(*SHARED, *own, *on, f"--trainer.max_epochs={epochs}")
        critic, actor = torch.load("run/checkpoints/last.ckpt")["optimizer_states"]
        assert critic["param_groups"][0]["lr"] == rate
        assert actor["param_groups"][0]["lr"] == 1e-3
        steps.append(float(critic["state"][0]["step"]))
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    said = "changed on resuming: model.critic_optimizer.lr="
    printed = capsys.readouterr().out
    assert f"{said}0.01, was 0.001" in printed
    assert f"{said}0.001, was 0.01" in printed
    other = "--model.critic_optimizer=torch.optim.SGD"
    line = fails(capsys, "fit", *SHARED, other, "--ckpt_path=last", "--run_dir=run")
    assert "SGD: the checkpoint holds the state of torch.optim.AdamW; continue with that" in line
