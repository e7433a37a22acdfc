"""Tasks: where prompts come from and what makes a response correct."""

from lit_reason.tasks.base import Task
from lit_reason.tasks.math_problems import MathProblems
from lit_reason.tasks.plan_count import PlanCount
from lit_reason.tasks.prompts import Prompts
from lit_reason.tasks.reasoning_gym import ReasoningGym

__all__ = ["MathProblems", "PlanCount", "Prompts", "ReasoningGym", "Task"]
