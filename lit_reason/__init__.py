"""Modular reinforcement learning of reasoning language models on Lightning.

PPO, GRPO, DAPO, VC-PPO and VAPO are configurations of the same parts. `README.md` has the first
commands; `lit_reason.functional` holds the equations.
"""

__version__ = "0.1.0"
