"""`VLLMEngine`: vLLM in the process of the trainer, on the same device."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.seed import isolate_rng

from lit_reason.batch import Response
from lit_reason.engines.synced import SyncedEngine
from lit_reason.engines.vllm_protocol import as_responses, prompt_seeds, sampling_fields
from lit_reason.engines.weights import Named
from lit_reason.errors import ConfigError
from lit_reason.rollout import Sampling

KEY = "data.engine"
# in the trainer's process, where weights are taken as they are
NEEDED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# nothing is sent anywhere, and the progress bar is not written over
WANTED = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


class VLLMEngine(SyncedEngine):
    """vLLM in the trainer's process (`vllm.LLM`), for a run of one process.

    It starts from the model's configuration alone and is sent every weight, merged where the policy
    has adapters, before the first rollout and after each update.

    Args:
        dtype: What vLLM computes in; null is float32 on a CPU and bfloat16 elsewhere.
        memory: Share of the GPU's memory for vLLM's weights and key-value cache; on a CPU of the
            machine's, unless the environment variable `VLLM_CPU_KVCACHE_SPACE` gives the GiB of the
            cache.
        sleep: Leave the GPU's memory to the update between rollouts.
        tolerance: See `SyncedEngine`.
        options: Further arguments of `vllm.LLM`, such as `max_model_len`.
    """

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16", "float16"] | None = None,
        memory: float = 0.4,
        sleep: bool = False,
        tolerance: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(tolerance)
        if find_spec("vllm") is None:
            raise ConfigError(
                f"{KEY}=VLLMEngine: needs vllm, which is not installed; "
                "pip install 'lit-reason[vllm]', or choose HFEngine"
            )
        if not 0 < memory < 1:
            raise ConfigError(f"{KEY}.memory={memory}: must lie between 0 and 1, for example 0.4")
        self.dtype, self.memory, self.sleep = dtype, memory, sleep
        self.options = options or {}
        self.llm: Any = None
        self._check_options()

    def _check_options(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            if self.options.get(name, 1) != 1:
                raise ConfigError(
                    f"{KEY}.options.{name}={self.options[name]}: VLLMEngine runs in one process; "
                    f"start `vllm serve` with it and choose {KEY}=VLLMServer"
                )
        for name in sorted(self.options.keys() & self._arguments("", "").keys()):
            own = {"gpu_memory_utilization": "memory", "enable_sleep_mode": "sleep"}.get(name, name)
            raise ConfigError(
                f"{KEY}.options.{name}={self.options[name]}: is set by the engine; remove it"
                + (f", and set {KEY}.{own}" if hasattr(self, own) else "")
            )

    def bind(self, module: Any) -> None:
        """See `RolloutEngine.bind`."""
        super().bind(module)
        ranks = module.trainer.world_size
        if ranks > 1:
            raise ConfigError(
                f"{KEY}=VLLMEngine: runs in one process, and the run has {ranks}; set "
                f"trainer.devices=1, or start `vllm serve` and choose {KEY}=VLLMServer"
            )
        device = module.trainer.strategy.root_device
        if self.sleep and device.type == "cpu":
            raise ConfigError(f"{KEY}.sleep=true: vLLM sleeps on a GPU only; set it to false")
        index = device.index
        if index:
            raise ConfigError(
                f"{KEY}=VLLMEngine: takes the first visible GPU, and trainer.devices=[{index}] "
                f"another; set CUDA_VISIBLE_DEVICES={index} and trainer.devices=1"
            )

    _more_room = f"raise {KEY}.options.max_model_len"

    # --- vLLM ---------------------------------------------------------------------------------

    @property
    def precision(self) -> str:
        """See `SyncedEngine.precision`."""
        on_cpu = self.module.device.type == "cpu"
        return self.dtype or ("float32" if on_cpu else "bfloat16")

    def _arguments(self, folder: str, dtype: str) -> dict[str, Any]:
        return {
            "model": folder,
            "dtype": dtype,
            "load_format": "dummy",  # the weights are sent
            "skip_tokenizer_init": True,  # tokens in, tokens out
            "generation_config": "vllm",  # none of the checkpoint's
            # as `Response.logprobs`: of the distribution that was drawn from
            "logprobs_mode": "processed_logprobs",
            "gpu_memory_utilization": self.memory,
            "enable_sleep_mode": self.sleep,
        }

    def _start(self) -> Any:
        os.environ.update({**WANTED, **os.environ, **NEEDED})
        from vllm import LLM

        with tempfile.TemporaryDirectory() as folder, _as_it_was():
            config = copy.deepcopy(self.module.actor.config)
            config.architectures = config.architectures or [type(self.module.actor).__name__]
            config.save_pretrained(folder)
            try:
                return LLM(**self._arguments(folder, self.precision), **self.options)
            except (ValueError, TypeError, RuntimeError) as error:
                reason = " ".join(str(error).split())  # pydantic names the setting in line two
                text = f"{KEY}=VLLMEngine: vLLM does not start ({reason:.300})"
                raise ConfigError(text) from error

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if self.llm is None:
            self.llm = self._start()
            self.context = self.llm.model_config.max_model_len
        elif self.sleep:
            self.llm.wake_up()
        try:
            with isolate_rng():  # of which vLLM takes numbers even where every request has a seed
                yield
        finally:
            if self.sleep:
                self.llm.sleep(level=1)

    def _push(self, weights: Iterator[Named]) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self.llm.reset_prefix_cache():  # of prompts that other weights have read
            raise RuntimeError("vLLM keeps what other weights have read")

    def _sample_each(self, prompt: list[int], sampling: Sampling) -> list[Response]:
        return self._generate([prompt], 1, sampling, 0)[0]

    def _generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        from vllm import SamplingParams

        backbone = self.module.backbone
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in prompts],
            [
                SamplingParams(**sampling_fields(sampling, samples, own, backbone.eos_ids))
                for own in prompt_seeds(seed, len(prompts), samples)
            ],
            use_tqdm=False,
        )
        return [
            as_responses([_row(o) for o in output.outputs], backbone.tokenizer, backbone.eos_ids)
            for output in outputs
        ]


def _row(output: Any) -> tuple[list[int], list[float]]:
    ids = list(output.token_ids)
    return ids, [at[i].logprob for i, at in zip(ids, output.logprobs, strict=True)]


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Keeps what vLLM would change for the whole process as it starts.

    That is the random state, the number of threads, and on a CPU `torch.set_num_threads` itself.
    """
    setter, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with isolate_rng():
            yield
    finally:
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
