"""VC-PPO's value initialisation bias, and its cure, in a toy small enough to see why."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from lit_reason.functional import (
    clipped_surrogate,
    gae,
    masked_mean,
    outcome_to_tokens,
    token_mean,
    value_loss,
)

STEPS, ROWS = 40, 2048
STOP = -2.5  # starting logit of the end token, at every position


class Toy:
    """A policy that only decides when to stop; the outcome, +1 in 3 of 4 cases, ignores it.

    The critic is linear in (1, position, whether the response has ended).
    """

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.stop = torch.full((STEPS,), STOP, requires_grad=True)
        self.critic = torch.zeros(3, requires_grad=True)

    def sample(self):
        """(mask, actions, token rewards) of fresh responses; the last position always stops."""
        chance = torch.sigmoid(self.stop.detach()).index_fill(0, torch.tensor(STEPS - 1), 1.0)
        stops = torch.rand(ROWS, STEPS, generator=self.generator) < chance
        mask = stops.long().cumsum(1) - stops.long() == 0
        right = torch.rand(ROWS, generator=self.generator) < 0.75
        return mask, stops, outcome_to_tokens(2.0 * right - 1.0, mask)

    def values(self, ended):
        position = torch.arange(STEPS).expand(ROWS, STEPS) / STEPS
        features = torch.stack([torch.ones_like(position), position, 1.0 * ended], -1)
        return features @ self.critic

    def fit_critic(self, only_ends):
        """As a reward model, on ended responses only, or on every state (value pretraining)."""
        mask, _, rewards = self.sample()
        target = gae(rewards, torch.zeros_like(rewards), mask)
        last = mask.flip(1).cumsum(1).flip(1) == 1
        optimizer = torch.optim.LBFGS([self.critic], max_iter=30)

        def loss():
            optimizer.zero_grad()
            values = self.values(torch.full_like(mask, only_ends))
            out = token_mean(value_loss(values, target), mask & last if only_ends else mask)
            out.backward()
            return out

        optimizer.step(loss)

    def advantages(self):
        mask, stops, rewards = self.sample()
        values = self.values(torch.zeros_like(mask))
        return gae(rewards, values, mask, lam=0.95), mask, stops

    def train_policy(self, updates):
        optimizer = torch.optim.SGD([self.stop], lr=40.0)
        for _ in range(updates):
            advantages, mask, stops = self.advantages()
            logprobs = torch.where(stops, logsigmoid(self.stop), logsigmoid(-self.stop))
            loss = token_mean(clipped_surrogate(logprobs, logprobs.detach(), advantages), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def length(self):
        return self.sample()[0].sum(1).float().mean().item()


@pytest.fixture
def toy():
    made = Toy()
    made.fit_critic(only_ends=True)
    return made


def mean_advantage(toy):
    """At each of the first positions, over responses that are still running there."""
    advantages, mask, _ = toy.advantages()
    return torch.stack([masked_mean(advantages[:, t], mask[:, t]) for t in range(15)])


def test_a_critic_that_saw_only_ends_makes_early_advantages_positive_and_shortens(toy):
    """VC-PPO: V is too low before the end, and the token that ends is the one that profits."""
    assert toy.values(torch.ones(ROWS, STEPS))[:, 9].mean().item() == pytest.approx(0.5, abs=0.1)
    assert toy.values(torch.zeros(ROWS, STEPS))[:, 9].mean() < 0.4
    assert (mean_advantage(toy) > 0.12).all()
    before = toy.length()
    toy.train_policy(40)
    assert toy.length() < 0.5 * before


def test_value_pretraining_flattens_the_advantages_and_keeps_the_length(toy):
    toy.fit_critic(only_ends=False)
    by_position = mean_advantage(toy)
    assert by_position.abs().max() < 0.08
    assert by_position.max() - by_position.min() < 0.06
    before = toy.length()
    toy.train_policy(40)
    assert toy.length() > 0.85 * before
