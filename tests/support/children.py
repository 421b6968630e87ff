"""Programs of the test suite that run as processes of their own: `python -m support.…`."""

import os
import sys
from pathlib import Path

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])}
"""With what is imported here, wherever the suite was started and however it found its own modules."""
