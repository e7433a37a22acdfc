"""Combinations that do nothing or bias the result: each is an error or a warning with its fix.

Others of the kind are refused where their part is tested: sizes that do not divide and groups of
one in `test_bad_input.py`, sampling that is not trained in `test_data.py`, verdicts of tasks that
have none in `test_prompts.py`.
"""

import re
import warnings

import pytest

from lit_reason.advantages import GAE
from lit_reason.callbacks import OverlongFilter, ValuePretraining, ValueWarmup
from lit_reason.errors import ConfigWarning
from lit_reason.objectives import ValueLoss
from lit_reason.rewards import Correctness, SoftOverlong
from tests.conftest import SMALL, fails, tiny
from tests.runs import data_of, module_of, run


def once(*callbacks, rewards=None, module=None):
    """A run of one rollout."""
    rewards = rewards or {"correctness": Correctness()}
    data = data_of(rewards=rewards, rollouts_per_epoch=1)
    run(module or module_of(), data, *callbacks)


def test_the_largest_punishment_of_what_does_not_train_is_warned_of():
    rewards = {"correctness": Correctness(), "soft": SoftOverlong(cache=4)}
    with pytest.warns(ConfigWarning, match=r"data\.rewards\.soft=SoftOverlong: .*one of the two"):
        once(OverlongFilter(), rewards=rewards)


def test_value_clipping_where_it_never_acts_is_warned_of():
    module = module_of()
    module.value = ValueLoss(clip=0.2)
    message = r"model\.value\.clip=0\.2: has no effect during value pretraining; set it to null"
    with pytest.warns(ConfigWarning, match=message):
        once(ValuePretraining(patience=None), module=module)


def test_a_length_adaptive_lambda_that_is_always_at_its_floor_is_warned_of():
    with pytest.warns(ConfigWarning, match=r"model\.advantage\.alpha=0\.001: .*choose alpha well"):
        once(module=module_of(advantage=GAE(alpha=0.001)))


@pytest.mark.parametrize("callback", [OverlongFilter(), ValueWarmup(1, save=True)])
def test_each_part_alone_is_not_warned_of(callback):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        once(callback)


@pytest.mark.parametrize(
    "strategy", ["fsdp", "deepspeed_stage_2", "FSDPStrategy", "ModelParallelStrategy"]
)
def test_strategies_that_shard_are_refused(strategy, capsys):
    """I04: ranks that end their responses at different lengths must not wait for each other."""
    flag = f"--trainer.strategy={strategy}"
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, flag)
    wanted = rf"trainer\.strategy={strategy}: shards the weights.*choose fsdp2, or ddp"
    assert re.search(wanted, line), line
