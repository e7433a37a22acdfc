"""Tasks: where prompts come from and what makes a response correct."""

from lit_reason.tasks.base import Task
from lit_reason.tasks.math_problems import MathProblems
from lit_reason.tasks.plan_count import PlanCount

__all__ = ["MathProblems", "PlanCount", "Task"]
