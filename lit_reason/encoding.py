"""From prompts to token ids."""

from __future__ import annotations

import warnings
from typing import Any

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning, blaming
from lit_reason.tasks import Task


def encode_prompts(
    task: Task,
    tokenizer: Any,
    max_length: int | None,
    budget: int | None,
    key: str,
) -> list[tuple[Prompt, list[int]]]:
    """Encodes every prompt of a task.

    Args:
        task: The problems.
        tokenizer: Renders chat messages with its template, encodes plain text as it would alone.
        max_length: Prompts with more tokens are left out with a warning; `None` keeps all.
        budget: Most prompt tokens that the model's context leaves beside the response.
        key: `task` or `val_task`, for messages.

    Raises:
        ConfigError: No prompt is left, or one does not fit the model's context.
    """
    with blaming(f"data.{key}", task):
        prompts = [task[i] for i in range(len(task))]
    odd = next((p for p in prompts if not isinstance(p, Prompt) or type(p.text) is not str), None)
    if odd is not None:
        raise ConfigError(
            f"data.{key}: {type(task).__name__} gives {odd!r:.80} as a problem, expected a Prompt "
            "with a text"
        )
    if not prompts:
        raise ConfigError(f"data.{key}={type(task).__name__}: holds no problem")
    encoded = [(prompt, encode_prompt(prompt, tokenizer, key)) for prompt in prompts]
    empty = next((prompt for prompt, ids in encoded if not ids), None)
    if empty is not None:
        raise ConfigError(f"data.{key}: problem {empty.index} has an empty prompt")
    kept = [(p, ids) for p, ids in encoded if max_length is None or len(ids) <= max_length]
    if len(kept) < len(encoded):
        warnings.warn(
            f"data.max_prompt_length={max_length}: {len(encoded) - len(kept)} of {len(encoded)} "
            f"prompts of data.{key} are longer and left out",
            ConfigWarning,
            stacklevel=2,
        )
    if not kept:
        raise ConfigError(
            f"data.{key}: no prompt is left with data.max_prompt_length={max_length}; the shortest "
            f"has {min((len(ids) for _, ids in encoded), default=0)} tokens"
        )
    unknown = [p for p, ids in kept if tokenizer.unk_token_id in ids]
    if tokenizer.unk_token_id is not None and unknown:
        warnings.warn(
            f"model.backbone: {len(unknown)} of {len(kept)} prompts of data.{key} hold characters "
            f"that the tokenizer does not know, the first is {unknown[0].text[:40]!r}",
            ConfigWarning,
            stacklevel=2,
        )
    longest = max(len(ids) for _, ids in kept)
    if budget is not None and longest > budget:
        raise ConfigError(
            f"data.{key}: a prompt of {longest} tokens and sampling.max_new_tokens do not fit the "
            f"model's context, which leaves {budget} for the prompt; lower "
            "data.sampling.max_new_tokens, or set data.max_prompt_length to leave such prompts out"
        )
    return kept


def encode_prompt(prompt: Prompt, tokenizer: Any, key: str = "task") -> list[int]:
    """Token ids of one prompt, with one beginning-of-sequence token where the tokenizer has one.

    Args:
        prompt: The prompt.
        tokenizer: See `encode_prompts`.
        key: See `encode_prompts`.

    Raises:
        ConfigError: It has chat messages, and the tokenizer has no template.
    """
    if prompt.messages is None:
        ids = tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        bos = tokenizer.bos_token_id
        wants_bos = bos is not None and bos in tokenizer("")["input_ids"]
        return [bos, *ids] if wants_bos and ids[:1] != [bos] else ids
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"data.{key}.chat=true: the tokenizer has no chat template; set it to false"
        )
    rendered = tokenizer.apply_chat_template(
        list(prompt.messages), add_generation_prompt=True, tokenize=False
    )
    return tokenizer(rendered, add_special_tokens=False)["input_ids"]
