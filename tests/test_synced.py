"""Engines with a copy of the policy: what they are sent and when, and the probe."""

import copy
from types import SimpleNamespace

import pytest
import torch

from lit_reason.backbones import Bundled
from lit_reason.engines import SyncedEngine
from lit_reason.engines.weights import policy_weights
from lit_reason.errors import ConfigError
from lit_reason.lora import LoRA, merged
from lit_reason.rollout import HFEngine, Sampling
from tests.conftest import SMALL, fit, ready, tiny
from tests.runs import data_of, module_of, run
from tests.test_mismatch import metrics


class Copied(SyncedEngine):
    """A copy of the policy in this process, in place of one in vLLM."""

    precision = "float32"
    deaf_from = 99  # the transfer that it is the first not to take

    def __init__(self, tolerance=None):
        super().__init__(tolerance)
        self.sent = []

    def _push(self, weights):
        weights = dict(weights)
        if not self.sent:
            self.model = copy.deepcopy(self.module.actor)
        if len(self.sent) < self.deaf_from:
            self.model.load_state_dict(weights, strict=False)
        self.sent.append(self.module.policy_version)

    def _generate(self, prompts, samples, sampling, seed):
        engine = HFEngine()
        engine.bind(
            SimpleNamespace(
                actor=self.model,
                backbone=self.module.backbone,
                device=self.module.device,
                trainer=self.module.trainer,
                wants_sampled_entropy=False,
            )
        )
        return engine.generate(prompts, samples, sampling, seed)

    def _sample_each(self, prompt, sampling):
        return self._generate([prompt], 1, sampling, 0)[0]


class Deaf(Copied):
    """Takes the first weights only."""

    deaf_from = 1


# --- weights --------------------------------------------------------------------------------------


def test_the_weights_are_those_of_the_checkpoint(backbone):
    actor = backbone.actor()
    sent, whole = dict(policy_weights(actor)), actor.state_dict()
    assert sent.keys() == whole.keys()  # the tied head too
    assert all(torch.equal(sent[name], whole[name]) for name in sent)


def test_adapters_are_merged_into_what_is_sent(backbone):
    actor = LoRA(Bundled(), r=4).actor()
    with torch.no_grad():
        for name, weight in actor.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(0))
    sent, plain = dict(policy_weights(actor)), merged(actor).state_dict()
    assert sent.keys() == plain.keys()
    for name, weight in plain.items():
        torch.testing.assert_close(sent[name], weight, msg=name)
    before = dict(backbone.actor().named_parameters())
    assert any(not torch.equal(sent[name], before[name]) for name in sent)


# --- when they are sent ---------------------------------------------------------------------------


def test_weights_are_sent_once_a_policy():
    engine = Copied()
    run(module_of(), data_of(engine=engine), max_epochs=2, limit_val_batches=1)
    # after the last rollout the held-out problems see the last policy; the refills send nothing
    assert engine.sent == [0, 1, 2, 3, 4]


def test_a_stage_begins_with_the_weights_that_it_has():
    engine, module = Copied(), ready(module_of())
    for _ in range(2):
        engine.bind(module)
        engine.generate([[3, 4]], 2, Sampling(max_new_tokens=2), seed=0)
    assert engine.sent == [0, 0]


def test_a_run_with_a_copy_is_the_run_without():
    own = metrics(fit(*tiny("dapo"), *SMALL, run_dir="own"))
    copied = metrics(fit(*tiny("dapo"), *SMALL, f"--data.engine={__name__}.Copied", run_dir="copy"))
    assert copied["mismatch/logprob_max"] < 1e-4
    for key in own.keys() - {k for k in own if k.startswith(("time", "mismatch", "tokens_per"))}:
        assert copied[key] == pytest.approx(own[key], abs=1e-4, nan_ok=True), key


def test_what_does_not_fit_the_copy_is_refused():
    engine, module = Copied(), ready(module_of())
    engine.context = 10
    engine.bind(module)
    prompts, message = [[3], [3, 4, 5, 6]], r"takes 10 tokens, and a prompt of 4 and max_new_tokens"
    with pytest.raises(ConfigError, match=message):
        engine.generate(prompts, 1, Sampling(max_new_tokens=7), seed=0)
    engine.generate(prompts, 1, Sampling(max_new_tokens=6), seed=0)


# --- the probe ------------------------------------------------------------------------------------


def test_a_copy_that_does_not_take_the_weights_stops_the_run():
    message = (
        r"data\.engine\.tolerance=0\.001: after the weights of rollout 1 were sent, log-probs of "
        r"Deaf are 0\.\d+ from the trainer's"
    )
    with pytest.raises(ConfigError, match=message):
        run(module_of(), data_of(engine=Deaf()))


def test_the_tolerance_says_how_much_is_too_much():
    engine = Deaf(tolerance=9.0)
    run(module_of(), data_of(engine=engine))
    assert engine.sent == [0, 1]


def test_the_probe_fails_on_what_is_not_a_number():
    engine, module = Copied(), ready(module_of())
    engine.bind(module)
    engine._apart = lambda *_: float("nan")
    with pytest.raises(ConfigError, match="are nan from"):
        engine.generate([[3, 4]], 1, Sampling(max_new_tokens=2), seed=0)


@pytest.mark.parametrize("temperature", [0.7, 1.3, 0.0])
def test_the_probe_scores_at_the_temperature_of_the_rollout(temperature):
    engine, module = Copied(tolerance=1e-4), ready(module_of())
    engine.bind(module)
    engine.generate([[3, 4]], 1, Sampling(temperature, 0.9, 3, 4), seed=0)
    assert engine.sent == [0]


@pytest.mark.parametrize(
    ("trainer", "engine", "tolerance"),
    [
        ("32-true", "float32", 1e-3),
        ("32-true", "bfloat16", 0.05),
        ("bf16-mixed", "float32", 0.05),
    ],
)
def test_the_default_tolerance_is_that_of_the_coarser_side(trainer, engine, tolerance):
    copied = Copied()
    copied.precision = engine
    copied.module = SimpleNamespace(trainer=SimpleNamespace(precision=trainer))
    assert copied._tolerance == tolerance


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_that_nothing_keeps_is_refused(tolerance):
    with pytest.raises(ConfigError, match=r"data\.engine\.tolerance=.*: must be above 0, or null"):
        Copied(tolerance)
