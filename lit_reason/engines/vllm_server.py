"""`VLLMServer`: one or several `vllm serve` elsewhere, asked over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import methodcaller
from typing import Any, TypeVar

import torch
from safetensors.torch import save

from lit_reason.batch import Response
from lit_reason.engines.replica import KEY, START, Replica
from lit_reason.engines.synced import SyncedEngine
from lit_reason.engines.vllm_protocol import Row, as_responses, prompt_seeds, sampling_fields
from lit_reason.engines.vllm_worker import facts
from lit_reason.engines.weights import Named, chunks
from lit_reason.errors import ConfigError, require_seconds
from lit_reason.rollout import Sampling

T = TypeVar("T")
CHUNK = 2**26  # bytes of weights in one request
PRECISIONS = ("float32", "bfloat16", "float16")
REQUESTS = 64  # prompts that one replica is asked at once


class VLLMServer(SyncedEngine):
    """vLLM servers that the user has started, each with a copy of the policy.

    A rank asks the replicas of its own, or shares one where there are more ranks than replicas. It
    sends them every weight after each update, over HTTP, merged where the policy has adapters:
    the servers need no folder or network in common with the trainer.

    Args:
        urls: Addresses of the servers; nothing else is connected to.
        sleep: Leave the GPUs' memory to others between rollouts; the servers need
            `--enable-sleep-mode`.
        timeout: Seconds that an answer may take, the generation of a whole group included.
        tolerance: See `SyncedEngine`.
    """

    _more_room = "start the server with a larger --max-model-len"
    _advice = (
        "start the server with --logprobs-mode processed_logprobs, with --dtype float32 to find "
        "out, or raise the tolerance"
    )

    def __init__(
        self,
        urls: list[str],
        sleep: bool = False,
        timeout: float = 600.0,
        tolerance: float | None = None,
    ) -> None:
        super().__init__(tolerance)
        if not urls:
            raise ConfigError(f"{KEY}=[]: names no server; start one with `{START}`")
        require_seconds("data.engine.timeout", timeout, "600")
        self.replicas = [Replica(url, timeout) for url in urls]
        if len({replica.url for replica in self.replicas}) < len(urls):
            raise ConfigError(f"{KEY}={urls}: names a server twice; name each once")
        self.sleep = sleep
        self._precision = ""

    def bind(self, module: Any) -> None:
        """See `RolloutEngine.bind`; the servers must answer, and serve a model of the same kind."""
        super().bind(module)
        rank, world = module.trainer.global_rank, module.trainer.world_size
        if self.sleep and world > len(self.replicas):
            raise ConfigError(
                f"data.engine.sleep=true: {world} ranks share {len(self.replicas)} servers, and "
                f"one rank would put a server to sleep that another asks; give {world} in {KEY}"
            )
        self.own = self.replicas[rank::world]  # that this rank sends weights to
        self.asked = self.own or [self.replicas[rank % len(self.replicas)]]
        served = self._each(self.asked, self._model)
        self.models = {r: name for r, (name, _) in zip(self.asked, served, strict=True)}
        self.context = min(context for _, context in served)

    def _model(self, replica: Replica) -> tuple[str, int]:
        """Name and context of the model that a replica serves; it must be of the policy's kind."""
        model = replica.get("/v1/models")["data"][0]
        for answer in replica.call("describe_policy"):
            served = dict(answer.of(dict))
            self._precision = answer["precision"].of(str)
            if served.pop("precision") not in PRECISIONS:
                raise answer["precision"].wrong(f"names the precision {self._precision:.40}")
            expected = facts(self.module.backbone.config.get_text_config())
            if served != expected:
                key = next(key for key in expected if served.get(key) != expected[key])
                raise ConfigError(
                    f"{KEY}={replica.url}: serves a model with {key}={served.get(key)}, and "
                    f"model.backbone has {expected[key]}; serve the folder of model.backbone"
                )
        return model["id"].of(str), model["max_model_len"].of(int)

    # --- the servers --------------------------------------------------------------------------

    @property
    def precision(self) -> str:
        """See `SyncedEngine.precision`."""
        return self._precision

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if not self.sleep:
            yield
            return
        # a server that has just been started is awake, and wakes up to no effect
        self._each(self.asked, methodcaller("post", "/wake_up"))
        try:
            yield
        finally:
            self._each(self.asked, methodcaller("post", "/sleep?level=1"))

    def _push(self, weights: Iterator[Named]) -> None:
        dtype = getattr(torch, self.precision)
        self._each(self.own, methodcaller("call", "begin_policy_weights"))
        sent = 0
        # also on a rank without a replica: gathering sharded weights needs every rank
        for chunk in chunks(weights, CHUNK, dtype):
            sent += len(chunk)
            text = base64.b64encode(save(chunk)).decode() if self.own else ""
            self._each(self.own, methodcaller("call", "receive_policy_weights", text))
        self._each(self.own, lambda replica: self._load(replica, sent))
        self.module.trainer.strategy.barrier()  # a replica may be another rank's to send to

    def _load(self, replica: Replica, sent: int) -> None:
        loaded = [str(answer.value) for answer in replica.call("load_policy_weights")]
        if set(loaded) != {str(sent)}:
            raise ConfigError(
                f"{KEY}={replica.url}: loaded {loaded} of {sent} weights; does another run send "
                "it weights?"
            )
        # of what other weights have read
        if not replica.post("/reset_prefix_cache")["success"].of(bool):
            raise ConfigError(
                f"{KEY}={replica.url}: cannot forget what other weights have read while it answers "
                "somebody else; give the run servers of its own"
            )

    def _sample_each(self, prompt: list[int], sampling: Sampling) -> list[Response]:
        answers = self._each(self.asked, lambda r: self._ask(r, prompt, 1, sampling, 0))
        return self._responses([row for rows in answers for row in rows])

    def _generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        seeds = prompt_seeds(seed, len(prompts), samples)

        def ask(i: int) -> list[Row]:
            replica = self.asked[i % len(self.asked)]
            return self._ask(replica, prompts[i], samples, sampling, seeds[i])

        return [self._responses(rows) for rows in self._each(range(len(prompts)), ask)]

    def _ask(
        self, replica: Replica, prompt: list[int], samples: int, sampling: Sampling, seed: int
    ) -> list[Row]:
        body = {
            **sampling_fields(sampling, samples, seed, self.module.backbone.eos_ids),
            "model": self.models[replica],
            "prompt": list(prompt),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # nothing is decoded there
        }
        choices = replica.post("/v1/completions", body)["choices"]
        parts = sorted(choices.parts(), key=lambda choice: int(choice["index"].of(int)))
        if len(parts) != samples:
            raise choices.wrong(f"has {len(parts)} `choices` where {samples} were asked for")
        return [
            (c["token_ids"].all_of(int), c["logprobs"]["token_logprobs"].all_of(int, float))
            for c in parts
        ]

    def _responses(self, rows: list[Row]) -> list[Response]:
        backbone = self.module.backbone
        return as_responses(rows, backbone.tokenizer, backbone.eos_ids)

    def _each(self, items: Sequence[Any], do: Callable[[Any], T]) -> list[T]:
        """What `do` returns for each item, in order, many at once."""
        if not items:
            return []
        with ThreadPoolExecutor(REQUESTS * len(self.asked)) as pool:
            return list(pool.map(do, items))
