"""One optimizer step of a real network, and the comparison of two such steps."""

import copy

import torch

from lit_reason.advantages import GAE
from lit_reason.aggregation import ConstantLength, PromptMean, SequenceMean, TokenMean
from lit_reason.learner import Update
from lit_reason.module import ReasonModule
from lit_reason.objectives import (
    ClippedSurrogate,
    EntropyBonus,
    KLToReference,
    PositiveExampleLM,
    ValueLoss,
)
from lit_reason.sharding import whole
from tests.conftest import ready

AGGREGATIONS = [TokenMean(), SequenceMean(), PromptMean(), ConstantLength(32)]
TERMS = {
    "policy": {},
    "kl": {"kl": KLToReference(0.5, "k3")},
    "entropy": {"entropy": EntropyBonus(0.1)},
    "positive_lm": {"positive_lm": PositiveExampleLM(0.3)},
    "all": {
        "kl": KLToReference(0.5, "k2"),
        "entropy": EntropyBonus(0.1),
        "positive_lm": PositiveExampleLM(0.3),
    },
}


class Recorder:
    """Stands in for the optimizer: keeps the gradients it is asked to step with."""

    def __init__(self, parameters):
        self.parameters, self.gradients = list(parameters), None

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.gradients = torch.cat([whole(p.grad).flatten() for p in self.parameters])


def build(backbone, terms=None, aggregation=None, **kwargs):
    policy = ClippedSurrogate(0.05, 0.08, aggregation=aggregation or TokenMean())
    terms = {name: copy.deepcopy(term) for name, term in (terms or {}).items()}
    for term in terms.values():
        # every term follows the policy's aggregation unless it fixes its own
        term.aggregation = None if not isinstance(term, PositiveExampleLM) else term.aggregation
    kwargs.setdefault("advantage", GAE(lam_policy=0.9))
    kwargs.setdefault("value", ValueLoss(clip=0.2))
    kwargs.setdefault("update", Update(1, 16, 16, max_grad_norm=None))
    return ready(ReasonModule(backbone, policy=policy, terms=terms, **kwargs))


def shift_weights(module, scale=0.02):
    """Moves the networks, so that ratios are not 1, clips act and values are not 0."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for network in (module.actor, module.critic):
            for p in network.parameters() if network is not None else ():
                p += scale * torch.randn(p.shape, generator=generator)


def experience_of(module, rollout):
    rows = [torch.arange(len(rollout))]
    experience, _ = module.annotate(rollout, rows)
    if experience.values is not None:
        experience.values = experience.values + 0.1
    return experience


def step(module, experience, name, split, term="all"):
    """Statistics and gradient of one optimizer step of one network, by one of its terms or all."""
    learner = module.learners()[name]
    if term != "all":
        learner.terms = {term: learner.terms[term]}
    recorder = Recorder(learner.parameters)
    minibatch = list(torch.arange(len(experience)).split(split))
    stats = learner.update(experience, minibatch, recorder, torch.Tensor.backward)
    return stats, recorder.gradients


def close(a, b):
    """To 1e-6 in float32: loss, statistics and gradient, which is not small by its own measure.

    By its own measure the gradient is the same to 3e-6: how products are rounded differs between
    processors, and 1.4e-6 has been seen.
    """
    (stats_a, gradient_a), (stats_b, gradient_b) = a, b
    assert stats_a.keys() == stats_b.keys()
    for key in stats_a:
        torch.testing.assert_close(stats_a[key], stats_b[key], atol=1e-6, rtol=0, msg=key)
    torch.testing.assert_close(gradient_a, gradient_b, atol=1e-6, rtol=0)
    assert gradient_a.abs().max() > 1e-3
    assert (gradient_a - gradient_b).norm() <= 3e-6 * gradient_a.norm()
