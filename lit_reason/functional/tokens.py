r"""Positions, masks and log-probabilities of tokens.

Masks are made from positions and counts, never by comparing ids with the pad id: where pad and
end-of-sequence share an id, that would erase the token which ended the response.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lit_reason.functional._checks import (
    check_dim,
    check_floats,
    check_ids,
    check_integers,
    check_mask,
    check_number,
    check_numbers,
    check_shape,
    check_values,
    check_whole,
    fractional,
    outside,
    upcast,
)

LOWEST_TEMPERATURE = 1e-6
"""Below it a difference of logits overflows; 0 stands for greedy sampling."""

EntropyMode: TypeAlias = Literal["none", "detached", "grad"]
"""Whether to compute the entropy not at all, without a gradient (a metric), or with one."""


def position_ids(attention_mask: Tensor) -> Tensor:
    r"""Position of each token among the real ones of its row.

    :math:`\max(\sum_{s \le t} m_s - 1, 0)`.

    A left-padded row gets the positions it would have alone. Padding gets 0, or the last position
    before it; the attention mask hides it anyway.

    Args:
        attention_mask: 1 or True at real tokens.

    Shapes:
        attention_mask ``(B, T)`` bool or int; returns ``(B, T)`` int64.

    Raises:
        ValueError: If the mask is not two-dimensional, neither boolean nor integer (an additive
            mask of 0 and -inf says the opposite), or holds other numbers than 0 and 1.

    Example:
        >>> position_ids(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]))
        tensor([[0, 0, 0, 1, 2],
                [0, 1, 2, 3, 3]])
    """
    check_dim(2, attention_mask=attention_mask)
    if attention_mask.dtype != torch.bool:
        check_integers(attention_mask=attention_mask)
        check_values(outside(0, 1, attention_mask=attention_mask))
    return ((attention_mask != 0).long().cumsum(1) - 1).clamp(min=0)


def last_token(mask: Tensor) -> Tensor:
    r"""The last real token of each row.

    :math:`m_t \, [\sum_{s > t} m_s = 0]`, where the outcome reward stands (DeepSeekMath,
    arXiv:2402.03300, Eq. 2).

    Args:
        mask: True at the response's tokens, whatever the padding side or gaps.

    Shapes:
        mask ``(B, T)`` bool; returns ``(B, T)`` bool, with no True in a row without tokens.

    Raises:
        ValueError: If the mask is not boolean or not two-dimensional.

    Example:
        >>> last_token(torch.tensor([[True, True, False], [False, False, False]]))
        tensor([[False,  True, False],
                [False, False, False]])
    """
    check_dim(2, mask=mask)
    check_mask(mask.shape, mask=mask)
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def relative_position(mask: Tensor, parts: int) -> Tensor:
    r"""Which of `parts` equal parts of its response a token is in.

    :math:`\lfloor n \, i / l \rfloor` for token i of l and n parts: the position axis of VC-PPO's
    figures (arXiv:2503.01491), for responses of any length.

    Args:
        mask: True at the response's tokens, whatever the padding side or gaps.
        parts: Number of parts, from 1 to 2^31.

    Shapes:
        mask ``(B, T)`` bool; returns ``(B, T)`` int64 in [0, parts) at the tokens, -1 elsewhere.

    Raises:
        ValueError: If the mask is not boolean or not two-dimensional, or `parts` is no count.

    Example:
        >>> mask = torch.tensor([[True, True, True, True], [False, True, True, False]])
        >>> relative_position(mask, 2)
        tensor([[ 0,  0,  1,  1],
                [-1,  0,  1, -1]])
    """
    check_dim(2, mask=mask)
    check_mask(mask.shape, mask=mask)
    check_whole(1, parts=parts)
    check_number(1, 2**31, parts=parts)
    place = (mask.cumsum(1) - 1) * parts // mask.sum(1, keepdim=True).clamp(min=1)
    return place.masked_fill(~mask, -1)


def response_mask(
    ids: Tensor, eos_ids: Sequence[int], lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Which response tokens exist, and which responses were cut off.

    :math:`m_t = [t < n]\prod_{s<t}[o_s \notin \text{eos}]`, the tokens that :math:`|o|` counts in
    DeepSeekMath (arXiv:2402.03300) Eq. 3 and DAPO (arXiv:2503.14476) Eq. 8: a token
    exists if it was generated and no end id stands before it; the first end id itself belongs to
    the response. A response is truncated if it holds no end id at all, so one that ends on the last
    allowed token is not. An empty response is truncated.

    Args:
        ids: Generated ids, without the prompt, right-padded.
        eos_ids: All ids that end a response.
        lengths: Number of tokens actually generated in each row; what lies beyond is padding,
            whatever its id. None takes all T as generated.

    Shapes:
        ids ``(B, T)`` int, lengths ``(B,)`` int; returns mask ``(B, T)`` bool and truncated
        ``(B,)`` bool.

    Raises:
        ValueError: On wrong shapes, ids or end ids that are not integers, or a length that is
            outside [0, T] or not a whole number.

    Example:
        >>> mask, truncated = response_mask(torch.tensor([[7, 8, 2, 2], [7, 7, 7, 7]]), eos_ids=[2])
        >>> mask.int(), truncated
        (tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32), tensor([False,  True]))
    """
    check_dim(2, ids=ids)
    check_integers(ids=ids)
    # compared as int64: a narrow type of `ids` would wrap the end ids that it cannot hold
    is_end = torch.isin(ids.long(), torch.tensor(_end_ids(eos_ids), device=ids.device).long())
    generated = torch.ones_like(is_end)
    if lengths is not None:
        check_shape(ids.shape[:1], lengths=lengths)
        check_numbers(lengths=lengths)
        check_values(fractional(lengths=lengths), outside(0, ids.shape[1], lengths=lengths))
        generated = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    is_end = is_end & generated
    ends_before = is_end.long().cumsum(1) - is_end.long()
    return generated & (ends_before == 0), ~is_end.any(1)


def _end_ids(eos_ids: Sequence[int]) -> list[int]:
    try:
        # no id is beyond 64 bits
        return [index(i) for i in eos_ids if abs(index(i)) < 2**63]
    except TypeError as error:
        raise ValueError(f"`eos_ids`={eos_ids!r} must be a sequence of integers") from error


def _chunk_size(positions: int, vocab: int, chunk: int | None) -> int:
    """Positions per chunk: 1/32 of them by default, but at least 64 Ki logits' worth."""
    if chunk is None:
        return max(positions // 32, (1 << 16) // max(vocab, 1), 1)
    check_whole(1, chunk=chunk)
    return int(chunk)


def _blocks(shape: torch.Size, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Tile (B, T) with whole rows, or pieces of one row, of at most `chunk` positions.

    Blocks rather than a flattened view, which would copy logits that are a slice of others.
    """
    rows, steps = max(chunk // max(shape[1], 1), 1), min(chunk, max(shape[1], 1))
    for row in range(0, shape[0], rows):
        for step in range(0, shape[1], steps):
            yield slice(row, row + rows), slice(step, step + steps)


# Each block's tensors are locals of one of the next two functions: freed before the next block.


def _score_block(
    logits: Tensor, ids: Tensor, temperature: float, entropy: EntropyMode
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probabilities, normalisers and entropies of one block."""
    z = upcast(logits) / temperature
    normaliser = torch.logsumexp(z, -1)
    logprobs = z.gather(-1, ids[..., None]).squeeze(-1) - normaliser
    if entropy == "none":
        return logprobs, normaliser, None
    p = z.sub_(normaliser[..., None]).exp_()
    return logprobs, normaliser, torch.special.entr(p).sum(-1)


def _block_gradient(
    logits: Tensor,
    ids: Tensor,
    normaliser: Tensor,
    temperature: float,
    grad_logprobs: Tensor,
    entropies: Tensor | None,
    grad_entropies: Tensor,
) -> Tensor:
    """Gradient of one block's logits; the softmax is computed again."""
    p = (upcast(logits) / temperature).sub_(normaliser[..., None]).exp_()
    grad_logprobs = grad_logprobs[..., None]
    if entropies is None:
        grad = p.mul_(-grad_logprobs)
    else:
        # dH/dz = -p (log p + H); entr(p) = -p log p is also right at p = 0.
        grad = torch.special.entr(p).mul_(grad_entropies[..., None])
        grad.sub_(p.mul_(grad_logprobs + (entropies * grad_entropies)[..., None]))
    return grad.scatter_add_(-1, ids[..., None], grad_logprobs).div_(temperature)


class _LogprobsAndEntropy(torch.autograd.Function):
    """Forward and backward in blocks of positions; keeps two floats a position, no softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        ids: Tensor,
        temperature: float,
        entropy: EntropyMode,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logprobs = torch.empty(ids.shape, dtype=dtype, device=ids.device)
        normaliser, entropies = torch.empty_like(logprobs), torch.zeros_like(logprobs)
        for block in _blocks(ids.shape, chunk):
            out = _score_block(logits[block], ids[block], temperature, entropy)
            logprobs[block], normaliser[block] = out[:2]
            if out[2] is not None:
                entropies[block] = out[2]
        ctx.save_for_backward(logits, ids, normaliser, entropies)
        ctx.temperature, ctx.entropy, ctx.chunk = temperature, entropy, chunk
        if entropy != "grad":
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any,
        grad_logprobs: Tensor,
        grad_entropies: Tensor,
    ) -> tuple[Tensor, None, None, None, None]:
        logits, ids, normaliser, entropies = ctx.saved_tensors
        grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        for block in _blocks(ids.shape, ctx.chunk):
            grad[block] = _block_gradient(
                logits[block],
                ids[block],
                normaliser[block],
                ctx.temperature,
                grad_logprobs[block],
                entropies[block] if ctx.entropy == "grad" else None,
                grad_entropies[block],
            )
        return grad, None, None, None, None


def logprobs_and_entropy(
    logits: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    entropy: EntropyMode = "none",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    r"""Log-probability of each given token, and the entropy of its distribution.

    .. math:: \log\pi(o_t) = z_{o_t} - \log\sum_v e^{z_v}, \qquad z = \text{logits} / \tau

    The terms of PPO's ratio (arXiv:1707.06347, section 3) and of its entropy bonus (Eq. 9).

    The caller shifts: ``logits[:, t]`` must be those that *predict* ``ids[:, t]`` (the model's
    output one position earlier). Works in chunks of positions, in float32 inside, and recomputes
    the softmax in the backward pass: beyond the gradient itself, the extra memory stays under a
    quarter of the logits. Not differentiable twice.

    Args:
        logits: Scores over the vocabulary; -inf marks a forbidden token.
        ids: Tokens to score, in [0, V), also at padding.
        temperature: The sampling temperature τ. 0 (greedy) scores at 1, without a division.
        entropy: ``"none"``, ``"detached"`` (a metric: no gradient path) or ``"grad"``.
        chunk: Positions per chunk; None picks about 1/32 of them.

    Shapes:
        logits ``(*, V)``, ids ``(*)`` int64; returns log-probabilities ``(*)`` and entropy ``(*)``
        or None, both in nats and float32 (float64 for float64 input).

    Raises:
        ValueError: If shapes do not match, the logits are not floating-point, the ids not int64 or
            outside [0, V), the temperature is negative or not finite, `entropy` is none of the
            three, or `chunk` is no whole number above 0. Of the logits nothing is read: a nan makes
            the results at its position nan.

    Example:
        >>> logits, ids = torch.tensor([[[2.0, 1.0, 0.0]]]), torch.tensor([[0]])
        >>> logprobs_and_entropy(logits, ids, entropy="detached")
        (tensor([[-0.4076]]), tensor([[0.8324]]))
        >>> logprobs_and_entropy(logits, ids, temperature=0.5)[0]
        tensor([[-0.1429]])
    """
    _check_scores(ids, logits=logits)
    _check_settings(temperature, entropy)
    check_values(outside(0, logits.shape[-1] - 1, ids=ids))
    return _score(logits, ids, temperature, entropy, chunk)


def _check_scores(ids: Tensor, **scores: Tensor) -> None:
    """Raise `ValueError` unless the scores are floats with one dimension more than the ids."""
    check_floats(**scores)
    check_ids(ids=ids)
    for name, tensor in scores.items():
        if tensor.ndim == 0:
            raise ValueError(f"`{name}` must have at least 1 dimension, got shape ()")
        check_shape(tensor.shape[:-1], ids=ids)


def _check_settings(temperature: float, entropy: EntropyMode) -> None:
    check_number(0.0, sys.float_info.max, temperature=temperature)
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"`temperature`={temperature} must be 0 or at least {LOWEST_TEMPERATURE}")
    if entropy not in ("none", "detached", "grad"):
        raise ValueError(f"`entropy` must be 'none', 'detached' or 'grad', got {entropy!r}")


def _score(
    logits: Tensor, ids: Tensor, temperature: float, entropy: EntropyMode, chunk: int | None
) -> tuple[Tensor, Tensor | None]:
    """`logprobs_and_entropy` of checked arguments."""
    shape, size = ids.shape, _chunk_size(ids.numel(), logits.shape[-1], chunk)
    # Two leading dimensions, without copying: a slice of larger logits stays a view.
    if ids.ndim != 2:
        logits, ids = logits.reshape(1, ids.numel(), logits.shape[-1]), ids.reshape(1, -1)
    logprobs, entropies = _LogprobsAndEntropy.apply(logits, ids, temperature or 1.0, entropy, size)
    return logprobs.reshape(shape), None if entropy == "none" else entropies.reshape(shape)


def _check_head(states: Tensor, logits: Any) -> None:
    if not isinstance(logits, Tensor):
        raise ValueError(f"`head` returned a {type(logits).__name__}, expected a tensor")
    check_floats(head=logits)
    if logits.ndim != 2 or len(logits) != len(states):
        raise ValueError(
            f"`head` returned shape {tuple(logits.shape)}, expected ({len(states)}, V)"
        )


def hidden_logprobs_and_entropy(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    ids: Tensor,
    temperature: float = 1.0,
    entropy: EntropyMode = "none",
    chunk: int = 256,
) -> tuple[Tensor, Tensor | None]:
    r"""The same from hidden states h, never holding the logits of more than one chunk.

    :math:`\log\pi(o_t) = z_{o_t} - \log\sum_v e^{z_v}` with :math:`z = \text{head}(h_t) / \tau`,
    for PPO's ratio (arXiv:1707.06347, section 3).

    Applies `head` chunk by chunk and, where a gradient is needed and there is more than one chunk,
    again in the backward pass. The peak extra memory is a few times ``chunk * V`` floats, whatever
    the number of positions. Pass the hidden states of the positions that predict `ids` only. The
    head must be deterministic.

    Args:
        hidden: Output of the last layer.
        head: Maps ``(N, H)`` to logits ``(N, V)``, usually the model's ``lm_head``.
        ids: Tokens to score.
        temperature: As in :func:`logprobs_and_entropy`.
        entropy: As in :func:`logprobs_and_entropy`.
        chunk: Positions whose logits exist at the same time.

    Shapes:
        hidden ``(*, H)``, ids ``(*)`` int64; returns as :func:`logprobs_and_entropy`, in nats.

    Raises:
        ValueError: As :func:`logprobs_and_entropy`, and if what `head` returns is not
            floating-point or has another shape.

    Example:
        >>> head = torch.nn.Linear(4, 8, bias=False)
        >>> _ = torch.nn.init.zeros_(head.weight)
        >>> hidden, ids = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
        >>> hidden_logprobs_and_entropy(hidden, head, ids, chunk=2)[0]
        tensor([[-2.0794, -2.0794, -2.0794],
                [-2.0794, -2.0794, -2.0794]], grad_fn=<ViewBackward0>)
    """
    _check_scores(ids, hidden=hidden)
    _check_settings(temperature, entropy)
    size, checked = _chunk_size(ids.numel(), 1, chunk), False

    def score(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        nonlocal checked
        logits = head(states)
        if not checked:  # the first chunk tells the size of the vocabulary
            _check_head(states, logits)
            check_values(outside(0, logits.shape[-1] - 1, ids=ids))
            checked = True
        return _score(logits, tokens, temperature, entropy, None)

    flat, tokens = hidden.reshape(ids.numel(), hidden.shape[-1]), ids.reshape(-1)
    if len(tokens) <= size:  # nothing to gain from a second pass
        parts = [score(flat, tokens)]
    else:
        parts = [
            checkpoint(score, h, i, use_reentrant=False, preserve_rng_state=False)
            for h, i in zip(flat.split(size), tokens.split(size), strict=True)
        ]
    logprobs = torch.cat([p[0] for p in parts]).reshape(ids.shape)
    entropies = None
    if entropy != "none":
        entropies = torch.cat([p[1] for p in parts if p[1] is not None]).reshape(ids.shape)
    return logprobs, entropies
