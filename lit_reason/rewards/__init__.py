"""The reward terms that a config can name; a run's reward is the sum of its named terms."""

from lit_reason.rewards.base import Reward, TokenReward
from lit_reason.rewards.function import FunctionReward
from lit_reason.rewards.length import KimiLength, SoftOverlong
from lit_reason.rewards.model import RewardModel
from lit_reason.rewards.steps import StepCorrectness
from lit_reason.rewards.text import Correctness, Format, LanguageConsistency

__all__ = [
    "Correctness",
    "Format",
    "FunctionReward",
    "KimiLength",
    "LanguageConsistency",
    "Reward",
    "RewardModel",
    "SoftOverlong",
    "StepCorrectness",
    "TokenReward",
]
