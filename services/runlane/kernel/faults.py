"""Unexpected exceptions in a log line: what kind and where, never their text, which may quote what was handled."""

import traceback
from pathlib import Path

FRAMES = 6


def trace_of(exc: BaseException) -> str:
    """``KeyError at handler.py:12 in decide < app.py:40 in serve < …``, innermost first, and what caused it."""
    frames = reversed(traceback.extract_tb(exc.__traceback__)[-FRAMES:])
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
    text = f"{type(exc).__name__} at {places}" if places else type(exc).__name__
    if isinstance(exc, BaseExceptionGroup):
        text += " of [" + "; ".join(trace_of(one) for one in exc.exceptions) + "]"
    return f"{text} from {trace_of(exc.__cause__)}" if exc.__cause__ is not None else text
