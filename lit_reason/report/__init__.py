"""What comes after a run: reading its files, pictures and pages of it, and running ablations.

Nothing here imports the training code; it reads `metrics.csv` and `samples.jsonl` and starts
training as a subprocess.
"""

from lit_reason.report.history import Run, read_run
from lit_reason.report.page import write_page
from lit_reason.report.plot import draw

__all__ = ["Run", "draw", "read_run", "write_page"]
