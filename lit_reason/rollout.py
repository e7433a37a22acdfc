"""Sampling responses from the current policy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import GenerationConfig

from lit_reason.batch import Prompt, Response
from lit_reason.cache import cache_argument, growing_cache
from lit_reason.decoding import Sampled, decode
from lit_reason.errors import LARGEST, ConfigError, require_at_least_one
from lit_reason.functional import response_mask
from lit_reason.functional.tokens import LOWEST_TEMPERATURE
from lit_reason.networks import evaluating
from lit_reason.sharding import gathered

if TYPE_CHECKING:
    from lit_reason.module import ReasonModule


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Attributes:
        temperature: Divides the logits; 0 takes the likeliest token.
        top_p: Nucleus mass. Below 1 the sampled distribution is not the one that is trained.
        top_k: Candidates per token; 0 keeps all.
        max_new_tokens: Token budget of a response (L_max of DAPO's Eq. 13).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 1024

    def __post_init__(self) -> None:
        _check_sampling("data.sampling", vars(self))


@dataclass(frozen=True)
class ValSampling:
    """How responses to held-out problems are drawn, where it differs from training.

    Attributes:
        temperature: See `Sampling`; null is as in training.
        top_p: Likewise.
        top_k: Likewise.
        max_new_tokens: Likewise.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_sampling("data.val_sampling", vars(self))

    def over(self, sampling: Sampling) -> Sampling:
        """`sampling` with what is set here in its place."""
        return replace(sampling, **{k: v for k, v in vars(self).items() if v is not None})


def _check_sampling(owner: str, values: dict[str, Any]) -> None:
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "temperature": (
            lambda x: x == 0 or LOWEST_TEMPERATURE <= x <= LARGEST,
            f"0 or at least {LOWEST_TEMPERATURE}, and at most {LARGEST:.1e}",
        ),
        "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1"),
        "top_k": (lambda x: x >= 0, "at least 0 (0 keeps all)"),
        "max_new_tokens": (lambda x: x >= 1, "at least 1"),
    }
    for name, (holds, rule) in rules.items():
        if values[name] is not None and not holds(values[name]):
            raise ConfigError(f"{owner}.{name}={values[name]}: must be {rule}")


class RolloutEngine(ABC):
    """Turns prompts into responses of the module's current policy.

    Attributes:
        on_policy: The responses are samples of the weights as they are now. Others train the critic
            only.
    """

    on_policy: ClassVar[bool] = True
    module: ReasonModule

    def bind(self, module: ReasonModule) -> None:
        """Keeps the module; its weights need not exist yet."""
        self.module = module

    def available(self, prompts: list[tuple[Prompt, list[int]]]) -> list[tuple[Prompt, list[int]]]:
        """The training prompts that the engine can answer; all of them unless it overrides this."""
        return prompts

    def check(self) -> None:  # noqa: B027
        """Refuses a run; called when the actor has its weights, and before a file is written."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """Samples responses.

        Args:
            prompts: Token ids of each prompt.
            samples: Responses a prompt (G).
            sampling: How to draw them.
            seed: The same seed and weights give the same responses.

        Returns:
            `samples` responses for each prompt, in order.
        """


def check_responses(
    engine: str, responses: Any, counts: tuple[int, int], sampling: Sampling, vocabulary: int
) -> None:
    """Refuses what an engine must not return.

    Args:
        engine: Its name, for the message.
        responses: What it returned.
        counts: Prompts, and responses to each.
        sampling: With the budget of tokens.
        vocabulary: Number of token ids.

    Raises:
        ConfigError: Another number of responses, or one that is none or does not fit.
    """
    key = f"data.engine={engine}"
    if not isinstance(responses, list) or not all(isinstance(x, list) for x in responses):
        raise ConfigError(f"{key}: returned no list of lists of Response")
    found = [len(answers) for answers in responses]
    if found != [counts[1]] * counts[0]:
        raise ConfigError(
            f"{key}: returned {found} responses for {counts[0]} prompts, expected {counts[1]} for "
            "each"
        )
    for response in (r for answers in responses for r in answers):
        if not isinstance(response, Response) or not isinstance(response.text, str):
            raise ConfigError(f"{key}: returned {response!r:.80}, expected a Response with a text")
        _check_tokens(key, response, vocabulary)
        if len(response.ids) > sampling.max_new_tokens:
            raise ConfigError(
                f"{key}: a response of {len(response.ids)} tokens is longer than max_new_tokens="
                f"{sampling.max_new_tokens}"
            )


def _check_tokens(key: str, response: Response, vocabulary: int) -> None:
    """Refuses ids that are no tokens, and columns beside them that do not fit."""
    ids, mask = response.ids, response.mask
    logprobs, entropies = response.logprobs, response.entropies
    if set(map(type, ids)) - {int} or (ids and not 0 <= min(ids) <= max(ids) < vocabulary):
        raise ConfigError(f"{key}: a response has ids that are no tokens of the model")
    for name, column in (("logprobs", logprobs), ("entropies", entropies), ("mask", mask)):
        if column is not None and len(column) != len(ids):
            raise ConfigError(
                f"{key}: a response of {len(ids)} tokens has {len(column)} entries in {name}; "
                "give one a token, or None"
            )
    for name, numbers in (("logprobs", logprobs), ("entropies", entropies)):
        if not all(map(math.isfinite, numbers or ())):
            raise ConfigError(f"{key}: a response has {name} that are not finite")
    if set(map(type, mask or ())) - {bool}:
        raise ConfigError(f"{key}: a response has a mask of other values than True and False")


@contextmanager
def _finite() -> Iterator[None]:
    """Says what is wrong when there is no distribution to draw from."""
    try:
        yield
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise FloatingPointError(
            "the actor's probabilities are not finite, so it cannot sample: its weights have "
            "diverged; lower model.actor_optimizer.lr, and continue from an earlier checkpoint"
        ) from error


class HFEngine(RolloutEngine):
    """`transformers` generation with the module's own actor, on its device and in its precision.

    A prompt is read once for the responses of its group that fit a micro-batch.

    Args:
        micro_batch_size: Responses generated at once.
    """

    def __init__(self, micro_batch_size: int = 64) -> None:
        require_at_least_one("data.engine", micro_batch_size=micro_batch_size)
        self.micro_batch_size = micro_batch_size

    def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """See `RolloutEngine.generate`."""
        responses: list[Response] = []
        device = self.module.device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self._inference() as actor, _finite():
            torch.manual_seed(seed)
            for chunk, copies in self._chunks(prompts, samples):
                responses += self._generate(actor, chunk, copies, sampling)
        return [responses[i : i + samples] for i in range(0, len(responses), samples)]

    def _chunks(
        self, prompts: Sequence[list[int]], samples: int
    ) -> Iterator[tuple[Sequence[list[int]], int]]:
        """(prompts, responses to each) that fit a micro-batch: whole groups, or parts of one."""
        size, most = max(self.micro_batch_size // samples, 1), self.micro_batch_size
        for start in range(0, len(prompts), size):
            for done in range(0, samples, most):
                yield prompts[start : start + size], min(most, samples - done)

    def _generate(
        self, actor: Any, prompts: Sequence[list[int]], copies: int, sampling: Sampling
    ) -> list[Response]:
        backbone = self.module.backbone
        tokenizer, eos_ids = backbone.tokenizer, backbone.eos_ids
        width = max(len(row) for row in prompts)
        pad = [[tokenizer.pad_token_id] * (width - len(row)) + row for row in prompts]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in prompts]
        sampled: Sampled = actor.generate(
            torch.tensor(pad, device=self.module.device),
            attention_mask=torch.tensor(mask, device=self.module.device),
            generation_config=generation_config(sampling, eos_ids, tokenizer.pad_token_id),
            custom_generate=decode,
            copies=copies,
            entropy=self.module.wants_sampled_entropy,
            **{cache_argument(actor): growing_cache(actor.config)},
        )
        out = sampled.ids.cpu()
        keep, truncated = response_mask(out, eos_ids)
        ids, logprobs, entropies = (_rows(x, keep) for x in (out, *sampled[1:]))
        texts = tokenizer.decode(ids, skip_special_tokens=True)
        return [
            Response(row, text, bool(cut), drawn, None, entropy)
            for row, text, cut, drawn, entropy in zip(
                ids, texts, truncated, logprobs, entropies, strict=True
            )
        ]

    @contextmanager
    def _inference(self) -> Iterator[Any]:
        """The actor without gradients, dropout or checkpointing, in the trainer's precision.

        The loader runs outside the trainer's autocast, and under plain `no_grad`: tensors made in
        inference mode could not be edited by callbacks afterwards.
        """
        actor = self.module.actor
        precision = self.module.trainer.precision_plugin
        with (
            torch.no_grad(),
            gathered(actor),
            precision.forward_context(),
            evaluating(actor),
            _bare_config(actor),
        ):
            yield actor


def generation_config(sampling: Sampling, eos_ids: list[int], pad_id: int) -> GenerationConfig:
    """Every field that changes the sampled distribution, set explicitly.

    `transformers` fills unset fields from the checkpoint's own file (top-k 50, repetition
    penalties), which would make rollouts off-policy without a word.
    """
    greedy = sampling.temperature == 0
    choice = (
        {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
        if greedy
        else {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    )
    return GenerationConfig(
        **choice,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=eos_ids,
        pad_token_id=pad_id,
        repetition_penalty=1.0,
        num_beams=1,
        use_cache=True,
    )


def _rows(x: Tensor | None, keep: Tensor) -> list[Any]:
    """What `keep` leaves of each row, or `None` for each row."""
    if x is None:
        return [None] * len(keep)
    return [tuple(row[m].tolist()) for row, m in zip(x.cpu(), keep, strict=True)]


@contextmanager
def _bare_config(actor: Any) -> Iterator[None]:
    own = actor.generation_config
    actor.generation_config = GenerationConfig()
    try:
        yield
    finally:
        actor.generation_config = own
