"""The sampling loop of `HFEngine`: what `transformers`' own does, for groups of responses.

It is handed to `generate` as `custom_generate`, so that inputs, logits processors and settings are
the library's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_reason.cache import attends, cache_argument
from lit_reason.functional import position_ids


class Sampled(NamedTuple):
    """What was drawn.

    Attributes:
        ids: (B, T) int64, responses without their prompts; padding after an end token.
        logprobs: (B, T) float32, of each token in the distribution it was drawn from; 0 on padding.
        entropies: (B, T) float32, of that distribution; `None` if not asked for.
    """

    ids: Tensor
    logprobs: Tensor
    entropies: Tensor | None


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    copies: int,
    entropy: bool = False,
    **inputs: Any,
) -> Sampled:
    """Draws `copies` responses to each prompt.

    A prompt is read once, whatever the number of its responses, and a response that has ended
    leaves the batch as soon as an eighth of it has.

    Args:
        model: A causal language model.
        input_ids: (N, P) prompts, left-padded.
        logits_processor: What shapes the distribution: temperature, top-k, top-p.
        stopping_criteria: Not read: responses end with an end token or the budget.
        generation_config: Budget, end tokens, and whether to draw or take the likeliest.
        copies: G.
        entropy: Also return entropies.
        **inputs: `attention_mask`, (N, P), 0 on padding and `None` without any; and an empty
            cache under the name that `cache_argument` gives.
    """
    argument, attention_mask = cache_argument(model), inputs["attention_mask"]
    cache = inputs[argument]
    budget, pad = generation_config.max_new_tokens, generation_config.pad_token_id
    ends = torch.tensor(generation_config.eos_token_id, device=input_ids.device)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    positions = position_ids(mask)
    logits = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=1,
        **{argument: cache},
    ).logits[:, -1]
    row = torch.arange(len(input_ids), device=input_ids.device).repeat_interleave(copies)
    cache.reorder_cache(row)  # of all ways to pick rows the only one that every layer has
    logits, place, prompts, mask = (x[row] for x in (logits, positions[:, -1:], input_ids, mask))
    # where nothing attends, padding is behind and a mask would be taken for one of the new tokens
    masked = attention_mask is not None and any(map(attends, cache.layers))
    width, rows = prompts.shape[1], len(prompts)
    # prompts stand before the responses, because logits processors are given both
    ids = torch.cat([prompts, prompts.new_full((rows, budget), pad)], 1)
    mask = torch.cat([mask, mask.new_ones(rows, budget)], 1)
    logprobs = torch.zeros(rows, budget, device=ids.device)
    entropies = torch.zeros_like(logprobs) if entropy else None
    active = torch.arange(rows, device=ids.device)  # the rows that are in the batch
    running = torch.ones(rows, dtype=torch.bool, device=ids.device)
    for step in range(budget):
        end = width + step
        seen = ids[active, :end]
        scores = logits_processor(seen, logits.float()).log_softmax(-1)
        tokens, drawn = _draw(scores, generation_config.do_sample)
        on = active[running]
        ids[on, end], logprobs[on, step] = tokens[running], drawn[running]
        if entropies is not None:
            entropies[on, step] = torch.special.entr(scores.exp()).sum(-1)[running]
        running &= ~torch.isin(tokens, ends)
        left = int(running.sum())
        if not left or step + 1 == budget:
            made = slice(step + 1)
            return Sampled(
                ids[:, width : end + 1],
                logprobs[:, made],
                None if entropies is None else entropies[:, made],
            )
        if left <= len(active) - max(len(active) // 8, 1):
            keep = running.nonzero().squeeze(1)
            cache.reorder_cache(keep)
            active, tokens, place, mask = (x[keep] for x in (active, tokens, place, mask))
            running = running[keep]
        place = place + 1
        logits = model(
            input_ids=tokens[:, None],
            attention_mask=mask[:, : end + 1] if masked else None,
            position_ids=place,
            use_cache=True,
            **{argument: cache},
        ).logits[:, -1]
    raise AssertionError("the budget is at least one token")


def _draw(logprobs: Tensor, at_random: bool) -> tuple[Tensor, Tensor]:
    """(B,) tokens of a distribution, and (B,) their log-probabilities."""
    likeliest = logprobs.argmax(-1, keepdim=True)
    tokens = torch.multinomial(logprobs.exp(), 1) if at_random else likeliest
    return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)
