"""Ctrl-C at moments when nothing can be lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _State:
    held = False
    came = False


@contextmanager
def held() -> Iterator[None]:
    """Put off the first Ctrl-C to the next ``check``, at the latest to the end of this.

    Python raises ``KeyboardInterrupt`` between any two steps, also between taking a reply that was
    paid for and keeping it. A second one is raised at once. Only in the main thread, which is the
    one that gets it, and only where nobody else handles it.
    """
    ours = threading.current_thread() is threading.main_thread() and not _State.held
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _State.held, _State.came = True, False
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        came, _State.came, _State.held = _State.came, False, False
    if came:
        raise KeyboardInterrupt


def check() -> None:
    """Raise ``KeyboardInterrupt`` if one was put off."""
    if _State.came and threading.current_thread() is threading.main_thread():
        _State.came = False
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    if _State.came:
        raise KeyboardInterrupt
    _State.came = True
