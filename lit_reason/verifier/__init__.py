"""Verification of mathematical answers: where a response states one, and whether it is right.

This package imports neither torch nor math-verify: its worker processes start with it.
"""

from lit_reason.verifier.equivalence import equivalent
from lit_reason.verifier.extract import AnswerFormat, extract
from lit_reason.verifier.verifier import Verifier

__all__ = ["AnswerFormat", "Verifier", "equivalent", "extract"]
