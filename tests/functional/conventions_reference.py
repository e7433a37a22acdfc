"""How other trainers compute the same quantities, from their published formulas.

Short restatements, one function for each convention, named after the trainer. They are
deliberately plain, keep each trainer's own constants, and take a mask of ones and zeros.
"""

import torch

# ---- GAE ----------------------------------------------------------------------------------------


def recursion(rewards, values, gamma, lam, after=0.0):
    """A_t = delta_t + gamma lam A_{t+1} over every column, `after` = value behind the last one."""
    advantages, ahead, following = torch.zeros_like(values), 0.0, after
    for t in range(values.shape[1] - 1, -1, -1):
        ahead = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * ahead
        advantages[:, t], following = ahead, values[:, t]
    return advantages


def verl_gae(rewards, values, mask, gamma, lam):
    """Carry value and trace unchanged over masked columns; NeMo RL's does the same."""
    ahead, following = torch.zeros(len(mask)).to(values), torch.zeros(len(mask)).to(values)
    columns = []
    for t in range(mask.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * following - values[:, t]
        m = mask[:, t]
        ahead = m * (delta + gamma * lam * ahead) + (1 - m) * ahead
        following = m * values[:, t] + (1 - m) * following
        columns.insert(0, ahead)
    return torch.stack(columns, 1)


def zeroed_gae(rewards, values, mask, gamma, lam):
    """OpenRLHF: values times mask, then the plain recursion over padding and gaps."""
    return recursion(rewards, values * mask, gamma, lam) * mask


def trl_gae(outcomes, values, lengths, lam):
    """TRL's PPO: value and outcome stand one slot after the last token, where there is room."""
    width = values.shape[1]
    place = torch.arange(width)
    end = lengths.clamp(max=width - 1)
    rewards = torch.zeros_like(values)
    rewards[torch.arange(len(lengths)), end] = outcomes
    kept = values * (place <= lengths[:, None])
    return recursion(rewards, kept, 1.0, lam) * (place < lengths[:, None])


def nemo_lambda(mask, alpha):
    """1 - 1 / max(alpha * length, 1), length = number of action tokens."""
    return 1 - 1 / (alpha * mask.sum(1)).clamp(min=1)


# ---- whitening ----------------------------------------------------------------------------------


def _mean_var(x, mask, ddof):
    n = mask.sum()
    mean = (x * mask).sum() / n
    return mean, (((x - mean) ** 2) * mask).sum() / (n - ddof)


def verl_whiten(x, mask):
    """Unbiased variance, 1e-8 under the root; masked entries are not reset to zero."""
    mean, var = _mean_var(x, mask, 1)
    return (x - mean) * torch.rsqrt(var + 1e-8)


def trl_whiten(x, mask, shift_mean=True):
    """As verl's; without shifting, the mean is subtracted and added again after scaling."""
    out = verl_whiten(x, mask)
    return out if shift_mean else out + _mean_var(x, mask, 1)[0]


def openrlhf_whiten(x, mask):
    """Population variance, clamped from below at 1e-8."""
    mean, var = _mean_var(x, mask, 0)
    return (x - mean) * var.clamp(min=1e-8).rsqrt()


# ---- group normalisation, one group -------------------------------------------------------------


def verl_group(rewards):
    """(R - mean) / (std + 1e-6), sample deviation; a single member keeps its raw score."""
    if len(rewards) == 1:
        return rewards / (1 + 1e-6)
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def trl_group(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def openrlhf_group(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-9)


def nemo_baseline(rewards):
    """Leave-one-out mean as the baseline, before any division."""
    n = len(rewards)
    return rewards - (rewards.sum() - rewards) / (n - 1)


# ---- policy loss, per token ---------------------------------------------------------------------


def verl_policy(logprobs, old, advantages, low, high, dual):
    """Log-ratio clamped at 20; the larger of two losses; for A < 0 capped at -c A (always on)."""
    ratio = (logprobs - old).clamp(-20, 20).exp()
    worse = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    return torch.where(advantages < 0, torch.min(worse, -advantages * dual), worse)


def trl_policy(logprobs, old, advantages, low, high):
    """No clamp of the log-ratio, no dual clip."""
    ratio = (logprobs - old).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


# ---- aggregation --------------------------------------------------------------------------------


def _row_means(loss, mask):
    return (loss * mask).sum(1) / mask.sum(1).clamp(min=1)


def verl_token_mean(loss, mask, tokens=None):
    """Sum over the tokens by the number of tokens of the whole mini-batch, which the engine passes.

    NeMo RL and OpenRLHF alike.
    """
    return (loss * mask).sum() / (mask.sum() if tokens is None else tokens)


def verl_token_mean_2025(loss, mask):
    """Before there was a global count: of each micro-batch, and never 0/0."""
    return (loss * mask).sum() / (mask.sum() + 1e-8)


def verl_seq_mean_token_mean(loss, mask, rows=None):
    """Mean over rows with a token, unless a number of rows is passed, as the engine does."""
    used = (mask.sum(1) > 0).sum()
    return _row_means(loss, mask).sum() / (used if rows is None else rows)


def verl_seq_mean_token_mean_2025(loss, mask):
    """Mean over all rows; the mean of a row without a token is 0/0."""
    return ((loss * mask).sum(1) / mask.sum(1)).mean()


def verl_seq_mean_token_sum(loss, mask, rows=None):
    used = (mask.sum(1) > 0).sum()
    return (loss * mask).sum() / (used if rows is None else rows)


def verl_seq_mean_token_sum_norm(loss, mask, scale=None, rows=None):
    """The former, divided by a constant; by the padded width where none is configured."""
    return verl_seq_mean_token_sum(loss, mask, rows) / (mask.shape[1] if scale is None else scale)


def verl_seq_mean_token_sum_norm_2025(loss, mask, scale=None):
    """In spite of its name not a mean over rows."""
    return (loss * mask).sum() / (mask.shape[1] if scale is None else scale)


def trl_grpo(loss, mask):
    """Mean over all rows, those without a token included."""
    return _row_means(loss, mask).mean()


def trl_bnpo(loss, mask):
    """By the tokens of this micro-batch; the micro-batches are then averaged."""
    return (loss * mask).sum() / mask.sum().clamp(min=1)


def trl_dapo(loss, mask, generated, share):
    """By the tokens of the generation batch, times the share of it that one optimizer step takes.

    Before the correction of 2026 the share was left out, so that a step of half the batch took half
    a gradient.
    """
    return (loss * mask).sum() / (max(generated, 1) * share)


def trl_dr_grpo(loss, mask, max_length):
    """Sum over all tokens by rows times the generation budget."""
    return (loss * mask).sum() / (len(mask) * max_length)


# ---- KL, value, length --------------------------------------------------------------------------


def verl_kl(logprobs, ref, kind):
    if kind == "k1":
        return logprobs - ref
    if kind == "k2":
        return 0.5 * (logprobs - ref) ** 2
    d = (ref - logprobs).clamp(-20, 20)
    return (d.exp() - d - 1).clamp(-10, 10)


def verl_k3_plus(logprobs, ref):
    """The value of k3 with the gradient of k2, on request."""
    k2 = verl_kl(logprobs, ref, "k2")
    return verl_kl(logprobs, ref, "k3").detach() + (k2 - k2.detach())


def trl_k3(logprobs, ref):
    return (ref - logprobs).exp() - (ref - logprobs) - 1


def verl_value(values, returns, old, clip):
    """Half the larger squared error, clipped at 0.5 by default; TRL and OpenRLHF alike."""
    near = torch.max(torch.min(values, old + clip), old - clip)
    return 0.5 * torch.max((values - returns) ** 2, (near - returns) ** 2)


def slime_value(values, returns, old, clip):
    """Without the factor one half."""
    return 2 * verl_value(values, returns, old, clip)


def nemo_explained_variance(values, returns, mask):
    """From E[R], E[R^2] and E[(R - V)^2]: the mean square of the error, not its variance."""
    n = mask.sum()
    mean, square = (returns * mask).sum() / n, (returns**2 * mask).sum() / n
    return 1 - ((returns - values) ** 2 * mask).sum() / n / (square - mean**2)


def verl_overlong(length, limit, cache):
    """No floor at -1."""
    return min(-(length - (limit - cache)) / cache, 0.0)
