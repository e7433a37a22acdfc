"""Make the oracles and the reference conventions importable by the tests next to them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
