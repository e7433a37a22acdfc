"""A reward model as a reward term."""

from __future__ import annotations

from itertools import count
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError, require_at_least_one
from lit_reason.reward_models import load_reward_model
from lit_reason.rewards.base import Reward
from lit_reason.tasks import Task
from lit_reason.verdict import Verdict


class RewardModel(Reward):
    """The scalar that a sequence-classification model gives to prompt and response.

    The text is encoded with the model's own tokenizer. A problem with chat messages goes through
    that tokenizer's chat template, with the response as the assistant's turn; any other, or with a
    tokenizer without a template, is the prompt's text followed by the response's. Every rank holds
    a whole copy of the model, on the device of the policy.

    Args:
        path: Folder or hub id of a model with one label, as `AutoModelForSequenceClassification`
            loads it.
        batch_size: Texts scored at once.
        max_length: Longest text in tokens. A longer one is unscored rather than cut, as a score of
            half a response says little about it. Null takes the model's context.
        dtype: Of the weights.
        weight: Multiplies the term.
        required: A response that the model cannot score does not train, whatever other terms say.
    """

    when_silent = "raise its max_length, as no text was short enough for the model"
    reads_verdicts = False

    def __init__(
        self,
        path: str,
        batch_size: int = 8,
        max_length: int | None = None,
        dtype: Literal["float32", "bfloat16"] = "float32",
        weight: float = 1.0,
        required: bool = False,
    ) -> None:
        super().__init__(weight)
        require_at_least_one("RewardModel", batch_size=batch_size, max_length=max_length)
        self.path, self.batch_size, self.required = path, batch_size, required
        self.max_length, self.dtype = max_length, dtype
        self.module: Any = None
        self.model: Any = None

    def bind(self, module: Any) -> None:
        """Keeps the module, whose device the model follows."""
        self.module = module

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:
        """Loads model and tokenizer, once."""
        if self.model is not None:
            return
        self.model, self.tokenizer = load_reward_model(
            self.path, getattr(torch, self.dtype), "RewardModel.path"
        )
        context = getattr(self.model.config, "max_position_embeddings", None)
        if self.max_length is None:
            self.max_length = context
        elif context is not None and self.max_length > context:
            raise ConfigError(
                f"RewardModel.max_length={self.max_length}: the model at {self.path} has a context "
                f"of {context} tokens; choose at most that, or null"
            )

    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[float | None]:
        """See `Reward.__call__`."""
        if self.module is not None:
            self.model.to(self.module.device)
        encoded = [self._encode(prompt, response.text) for response in responses]
        scores: list[float | None] = [None] * len(encoded)
        limit = self.max_length
        fitting = [i for i, ids in enumerate(encoded) if 0 < len(ids) <= (limit or len(ids))]
        for start in range(0, len(fitting), self.batch_size):
            chosen = fitting[start : start + self.batch_size]
            for i, score in zip(chosen, self._score([encoded[i] for i in chosen]), strict=True):
                scores[i] = score
        return scores

    def _encode(self, prompt: Prompt, response: str) -> list[int]:
        response = response.encode(errors="replace").decode()  # no half of a surrogate pair
        if prompt.messages is None or self.tokenizer.chat_template is None:
            return self.tokenizer(prompt.text + response)["input_ids"]
        turns = [*prompt.messages, {"role": "assistant", "content": response}]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def _score(self, rows: list[list[int]]) -> list[float]:
        # a token of none of the texts: the model takes its score before the padding, and would
        # take an end token for padding too if the two had one number
        used = {token for row in rows for token in row}
        pad = next(i for i in count() if i not in used)
        self.model.config.pad_token_id = pad
        ids = pad_sequence([torch.tensor(row) for row in rows], True, pad).to(self.model.device)
        lengths = torch.tensor([len(row) for row in rows], device=ids.device)
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        logits = self.model(input_ids=ids, attention_mask=mask.long()).logits
        return logits[:, 0].float().tolist()
