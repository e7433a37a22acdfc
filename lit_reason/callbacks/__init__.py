"""Callbacks.

`OverlongFilter`, `ValueWarmup` and `ValuePretraining` intervene: they edit the rollout or the phase
before the update.
The others only observe.
"""

from lit_reason.callbacks.critic import CriticMonitor
from lit_reason.callbacks.entropy import EntropyMonitor
from lit_reason.callbacks.export import ExportPolicy
from lit_reason.callbacks.overlong import OverlongFilter
from lit_reason.callbacks.predictions import PredictionWriter
from lit_reason.callbacks.progress import ReasonProgressBar
from lit_reason.callbacks.recorder import RolloutRecorder
from lit_reason.callbacks.samples import SampleTable
from lit_reason.callbacks.summary import RunSummary
from lit_reason.callbacks.value_pretraining import ValuePretraining
from lit_reason.callbacks.value_warmup import ValueWarmup

__all__ = [
    "CriticMonitor",
    "EntropyMonitor",
    "ExportPolicy",
    "OverlongFilter",
    "PredictionWriter",
    "ReasonProgressBar",
    "RolloutRecorder",
    "RunSummary",
    "SampleTable",
    "ValuePretraining",
    "ValueWarmup",
]
