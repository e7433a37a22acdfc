"""The algorithms as settings of one another, through the command line and bit for bit.

Every run lays `configs/scale/tiny.yaml` and the same sizes over an algorithm's configuration. What
remains are the algorithm's own switches and, where the published recipes differ in something that
is not the algorithm, the settings of `RECIPE`.
"""

import csv
import os

import pytest
import torch

from tests.conftest import SMALL, fit, tiny

pytestmark = [
    pytest.mark.slow,
    # VAPO's warm-up, where it is the switch left on, is longer than these runs
    pytest.mark.filterwarnings("ignore:ValueWarmup.rollouts:lit_reason.errors.ConfigWarning"),
    # λ_policy = 1 where the length-adaptive λ is the switch left on
    pytest.mark.filterwarnings("ignore:model.advantage.lam_policy:lit_reason.errors.ConfigWarning"),
]

ROLLOUTS = 2
SIZES = [
    *SMALL,
    f"--data.rollouts_per_epoch={ROLLOUTS}",
    "--data.group_size=8",
    "--model.update.minibatch_size=16",
    "--model.update.micro_batch_size=16",
    "--data.sampling.max_new_tokens=20",  # below the longest responses, so that some are cut off
    # uncertain tokens and large steps, so that the clip bounds act
    "--data.sampling.temperature=2.0",
    "--model.actor_optimizer.init_args.lr=1.0e-3",
    "--model.update.epochs=2",
    "--trainer.limit_val_batches=0",
    "--callbacks.samples=null",
    "--callbacks.entropy=null",
]
RECIPE = {
    # DAPO's script decays weights by 0.1; DeepSeekMath states nothing
    "dapo": ["--model.actor_optimizer.init_args.weight_decay=0.0"],
    # Open-Reasoner-Zero rewards 1/0, whitens advantages and sets betas of its own
    "ppo": [
        "--data.rewards.correctness.init_args.wrong=-1",
        "--model.advantage.whiten=false",
        "--model.actor_optimizer.init_args.betas=[0.9,0.999]",
    ],
}
SWITCHES = {
    "dapo": {
        "clip-higher": "--model.policy.clip_high=0.2",
        "token-level loss": "--model.policy.aggregation=SequenceMean",
        "dynamic sampling": "--data.group_filter=null",
        "soft overlong punishment": "--data.rewards.soft_overlong=null",
        "no KL": "--model.terms.kl={class_path: KLToReference, init_args: {coef: 0.04}}",
    },
    "vapo": {
        "length-adaptive GAE": "--model.advantage.alpha=null",
        "decoupled GAE": "--model.advantage.lam_policy=1.0",  # λ_critic is 1
        "positive-example LM loss": "--model.terms.positive_lm=null",
        "clip-higher": "--model.policy.clip_high=0.2",
        "value pretraining": "--callbacks.value_warmup=null",
    },
    "vc_ppo": {
        "decoupled GAE": "--model.advantage.lam_policy=1.0",
        "value pretraining": "--callbacks.value_warmup=null",
    },
}
REDUCES_TO = {"dapo": "grpo", "vapo": "ppo", "vc_ppo": "ppo"}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """(checkpoint, metrics) of a run; each is made once."""
    done = {}

    def run(name, *switches):
        key = (name, *switches)
        if key not in done:
            folder = tmp_path_factory.mktemp(name) / "run"
            fit(*tiny(name), *SIZES, *RECIPE.get(name, []), *switches, run_dir=folder)
            checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
            with (folder / "metrics.csv").open(newline="") as file:
                done[key] = checkpoint, list(csv.DictReader(file))
        return done[key]

    yield run
    os.environ.pop("PL_GLOBAL_SEED", None)


def reduced(name, *left_on):
    return [flag for switch, flag in SWITCHES[name].items() if switch not in left_on]


def same(a, b):
    """Whether two nested structures are equal, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def numbers(row):
    return {k: v for k, v in row.items() if v != "" and not k.startswith("time/")}


@pytest.mark.parametrize("name", REDUCES_TO)
def test_an_algorithm_without_its_switches_is_the_simpler_one(outcome, name):
    checkpoint, metrics = outcome(name, *reduced(name))
    expected, expected_metrics = outcome(REDUCES_TO[name])
    assert same(checkpoint["state_dict"], expected["state_dict"])
    assert same(checkpoint["optimizer_states"], expected["optimizer_states"])
    assert [numbers(row) for row in metrics] == [numbers(row) for row in expected_metrics]
    # several updates happened, and they moved the weights
    rows = [row for row in metrics if row["loss/policy"]]
    assert len(rows) == ROLLOUTS
    assert all(float(row["grad_norm/actor"]) > 0 for row in rows)
    taken = [s["step"] for o in checkpoint["optimizer_states"] for s in o["state"].values()]
    assert {int(steps) for steps in taken} == {4 * ROLLOUTS}


@pytest.mark.parametrize(
    ("name", "switch"), [(name, switch) for name in ("dapo", "vapo") for switch in SWITCHES[name]]
)
def test_one_switch_left_on_is_another_algorithm(outcome, name, switch):
    checkpoint, _ = outcome(name, *reduced(name, switch))
    expected, _ = outcome(REDUCES_TO[name])
    assert not same(checkpoint["state_dict"], expected["state_dict"])
