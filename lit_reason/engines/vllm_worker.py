"""What `vllm serve` mixes into its workers, so that they take the policy's weights over HTTP.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \
        --worker-extension-cls lit_reason.engines.vllm_worker.PolicyWorker

It imports neither vLLM nor the rest of this package: a server needs the package on its path, and
none of what it depends on beyond what vLLM brings.
"""

from __future__ import annotations

import base64
from typing import Any

from safetensors.torch import load
from torch import Tensor

COMPARED = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")


def facts(config: Any) -> dict[str, Any]:
    """What a model's configuration must agree on for its weights to fit another of the kind."""
    return {name: getattr(config, name, None) for name in COMPARED}


class PolicyWorker:
    """Methods that `/collective_rpc` calls by name; its arguments are texts."""

    model_config: Any
    reload_weights: Any
    policy_weights: dict[str, Tensor]

    def describe_policy(self) -> dict[str, Any]:
        """`facts` of the model that is served, and its precision."""
        precision = str(self.model_config.dtype).removeprefix("torch.")
        return {**facts(self.model_config.hf_text_config), "precision": precision}

    def begin_policy_weights(self) -> None:
        """Forgets weights that were received and never loaded."""
        self.policy_weights = {}

    def receive_policy_weights(self, chunk: str) -> None:
        """Keeps some weights until all have come: a safetensors file in base64."""
        self.policy_weights |= load(base64.b64decode(chunk))

    def load_policy_weights(self) -> int:
        """Loads what was received.

        Returns:
            The number of weights.
        """
        received, self.policy_weights = self.policy_weights, {}
        self.reload_weights(weights_iterator=iter(received.items()))
        return len(received)
