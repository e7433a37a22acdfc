"""Rollout engines that hold a copy of the policy."""

from lit_reason.engines.synced import SyncedEngine

__all__ = ["SyncedEngine"]
