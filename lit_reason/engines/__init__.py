"""Rollout engines that hold a copy of the policy: vLLM in this process, and vLLM servers."""

from lit_reason.engines.synced import SyncedEngine
from lit_reason.engines.vllm_engine import VLLMEngine
from lit_reason.engines.vllm_server import VLLMServer

__all__ = ["SyncedEngine", "VLLMEngine", "VLLMServer"]
