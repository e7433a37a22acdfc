"""VC-PPO's value initialisation bias and DAPO's Clip-Higher, in toys small enough to see why."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from lit_reason.functional import (
    clipped_surrogate,
    gae,
    group_relative,
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

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
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


@pytest.fixture(params=range(5))
def toy(request):
    made = Toy(request.param)
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
    assert (mean_advantage(toy) > 0.1).all()
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


# ---- DAPO's Clip-Higher -------------------------------------------------------------------------

STATES, SEEDS, GROUP, EPOCHS, ACTIONS = 64, 20, 16, 4, 8


def entropies(chances, rewards, clip_high, updates=20):
    """(updates + 1, seeds): mean entropy over the states of a tabular policy, before each rollout.

    Every state has its own logits, a group of samples a rollout, rewards of 0 or 1 with the chance
    `rewards` of the action, and a few epochs of gradient steps of 1 over the same samples.
    """
    generator = torch.Generator().manual_seed(0)
    states, measured = STATES * SEEDS, []
    logits = torch.tensor(chances).log().repeat(states, 1).requires_grad_()
    rewards, ids = torch.tensor(rewards), torch.arange(states).repeat_interleave(GROUP)
    for _ in range(updates + 1):
        policy = logits.detach().log_softmax(-1)
        measured.append(-(policy.exp() * policy).sum(-1).view(SEEDS, STATES).mean(1))
        actions = torch.multinomial(policy.exp(), GROUP, replacement=True, generator=generator)
        right = torch.rand(actions.shape, generator=generator) < rewards[actions]
        advantages = group_relative(right.flatten(), ids).view(states, GROUP)
        old = policy.gather(1, actions)
        for _ in range(EPOCHS):
            new = logits.log_softmax(-1).gather(1, actions)
            loss = clipped_surrogate(new, old, advantages, 0.2, clip_high).mean(1).sum()
            (gradient,) = torch.autograd.grad(loss, logits)
            logits.data -= gradient
    return torch.stack(measured)


def gain(chances, rewards):
    """Entropy at .2/.28 minus entropy at .2/.2 after each update, in standard errors."""
    low, high = (entropies(chances, rewards, clip) for clip in (0.2, 0.28))
    error = ((low.var(1) + high.var(1)) / SEEDS).sqrt()
    return (high.mean(1) - low.mean(1)) / error, low.mean(1)


def test_clip_higher_keeps_entropy_where_a_habit_hides_a_rare_better_action():
    """DAPO 3.1: a bound of 1.2 does not restrain p = .9, and holds p = .02 to .024 a rollout.

    The habit is right half of the time, the rare action always, the six others never. The habit
    grows by chance and entropy decays; the rare action, once sampled, gets further with .28.
    """
    rest = (1 - 0.92) / (ACTIONS - 2)
    scores, entropy = gain([0.9, *[rest] * (ACTIONS - 2), 0.02], [0.5, *[0.0] * (ACTIONS - 2), 1.0])
    assert (entropy[[5, 10, 15, 20]].diff() < 0.005).all()
    assert entropy[15] < 0.7 * entropy[0]
    assert (scores[[5, 10, 15, 20]] > 3).all()


def test_clip_higher_loses_entropy_sooner_where_nothing_has_to_be_found():
    """A uniform policy samples the best action at once: a wider bound only learns faster."""
    scores, entropy = gain([1 / ACTIONS] * ACTIONS, [0.5, *[0.0] * (ACTIONS - 2), 1.0])
    assert entropy[20] < 0.1 * entropy[0]
    assert (scores[[5, 10]] < -3).all()
