"""What vLLM is asked, in this process and over HTTP, and what its answers are as responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from lit_reason.batch import Response
from lit_reason.rollout import Sampling

Row: TypeAlias = tuple[Sequence[int], Sequence[float]]
"""Ids and log-probs of a response."""


def sampling_fields(
    sampling: Sampling, samples: int, seed: int, eos_ids: Sequence[int]
) -> dict[str, Any]:
    """The sampling parameters of one prompt, under names that `SamplingParams` and HTTP share.

    Every field that changes the distribution is set: vLLM takes the others from the checkpoint's
    `generation_config.json`.

    Args:
        sampling: How to draw.
        samples: Responses; response k is drawn with seed + k.
        seed: Of the first response.
        eos_ids: Every token that ends a response.
    """
    return {
        "n": samples,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": list(eos_ids),
        "logprobs": 0,  # of the sampled token alone
    }


def prompt_seeds(seed: int, prompts: int, samples: int) -> list[int]:
    """A seed for each prompt, so that no two responses share one.

    Example:
        >>> prompt_seeds(7, prompts=3, samples=4)
        [7, 11, 15]
    """
    return [seed + i * samples for i in range(prompts)]


def as_responses(rows: Sequence[Row], tokenizer: Any, eos_ids: Sequence[int]) -> list[Response]:
    """Responses of sampled tokens and their log-probs, the end token included in both.

    Args:
        rows: What was sampled.
        tokenizer: Decodes them.
        eos_ids: Every token that ends a response.
    """
    ids = [list(tokens) for tokens, _ in rows]
    texts = tokenizer.decode(ids, skip_special_tokens=True)
    return [
        Response(tuple(i), text, not i or i[-1] not in eos_ids, tuple(logprobs))
        for i, text, (_, logprobs) in zip(ids, texts, rows, strict=True)
    ]
