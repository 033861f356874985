"""Defers Ctrl-C to moments at which no paid reply can be lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _State:
    deferring = False
    pending = False


@contextmanager
def deferred() -> Iterator[None]:
    """Defer the first Ctrl-C to the next ``check``, or to the end of the block.

    Python can raise ``KeyboardInterrupt`` between any two steps, even between the arrival of a paid
    reply and its storing. A second Ctrl-C is raised at once. This works only in the main thread,
    in which Python raises it, and only if Python's default handler is installed.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    can_defer = in_main_thread and not _State.deferring
    if not can_defer or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _State.deferring, _State.pending = True, False
    signal.signal(signal.SIGINT, _defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pending, _State.pending, _State.deferring = _State.pending, False, False
    if pending:
        raise KeyboardInterrupt


def check() -> None:
    """Raise ``KeyboardInterrupt`` if one was deferred."""
    if _State.pending and threading.current_thread() is threading.main_thread():
        _State.pending = False
        raise KeyboardInterrupt


def _defer(number: int, frame: FrameType | None) -> None:
    if _State.pending:
        raise KeyboardInterrupt
    _State.pending = True
