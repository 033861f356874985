"""One thread for many calls at a time: whatever comes first is gone on with.

A thread for each call would do, but that many hand the interpreter's lock around thousands of
times a second, and answers wait for it.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import count, islice
from queue import Empty, SimpleQueue
from typing import Any

from strop.errors import BadInput
from strop.lm.gate import Gate, Stopped
from strop.lm.lean import Connection, Refused, Site, Unreachable
from strop.lm.runner import MANY, Done, Task

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_HELPERS = 16
"""Connections made at a time; finding a host, reaching it and agreeing on a cipher takes time."""


_SELECTED = 500
"""Connections that can be watched where the system has no better way than ``select``."""
_SPARE = 64
"""Files that a process needs open besides its connections."""


def check_connections(concurrency: int) -> None:
    """Refuse more calls at a time than this system has connections for."""
    said = f"concurrency is {concurrency:,}"
    if concurrency > _SELECTED and issubclass(selectors.DefaultSelector, selectors.SelectSelector):
        raise BadInput(f"{said}; this system can watch at most {_SELECTED} connections at a time")
    if sys.platform == "win32":
        return
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and concurrency + _SPARE > files:
        raise BadInput(
            f"{said}, but this process may have {files:,} files and connections open at a time, "
            f"and needs {_SPARE} for others; take at most {max(files - _SPARE, MANY):,}, or raise "
            f"the limit: ulimit -n {concurrency + _SPARE}"
        )


class Mistake(Exception):
    """Something went wrong in the loop itself; no service has to do with it."""


class Loop:
    """``Workers``: one thread, connections that are kept, and helpers for making them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.hungry = True
        self._begun: set[Task] = set()
        self._waiting: list[tuple[float, int, Task]] = []
        self._order = count()
        self._busy: dict[Connection, tuple[Task, float]] = {}
        """Who waits for an answer, and since when nothing has come; the longest silence first."""
        self._idle: list[Connection] = []
        self._answers: deque[tuple[Task, str]] = deque()
        """What has come and is looked at when there is nothing more urgent: requests go first."""
        self._connecting: dict[int, tuple[Task, float, bytes]] = {}
        """Who waits for a connection, since when, and what is to be sent; the longest first."""
        self._unconnected: SimpleQueue[int | None] = SimpleQueue()
        self._helpers: list[threading.Thread] = []
        self._made: SimpleQueue[tuple[int, Connection | Exception]] = SimpleQueue()
        self._looked = 0.0
        """All that had come by this moment has been read."""
        self._dismissed = self._over = False
        self._bell: socket.socket | None = None
        self._rung = False

    def wanted(self, tasks: int) -> int:
        """One thread."""
        return 1

    def wake(self) -> None:
        """Have the thread look at its queues; before it has begun it looks by itself."""
        if self._bell is not None and not self._rung:
            try:
                self._rung = True
                with suppress(OSError):  # it has ended meanwhile
                    self._bell.send(b".")
            except BaseException:  # an interrupt: whoever comes next is to ring
                self._rung = False
                raise

    def close(self) -> None:
        """Nothing: the thread cleans up after itself."""

    def work(self, todo: SimpleQueue[Task | None], done: SimpleQueue[Done], gate: Gate) -> None:
        """Carry out tasks, as many at a time as the gate may let through."""
        self._todo, self._done, self._gate = todo, done, gate
        try:
            with selectors.DefaultSelector() as self._selector:
                heard, bell = socket.socketpair()
                with heard, bell:
                    heard.setblocking(False)
                    self._selector.register(heard, _READ)
                    self._bell = bell
                    try:
                        self._serve(heard)
                    finally:
                        self._hang_up()
        except Exception as error:  # a mistake, which must not leave the run waiting for ever
            self._fail(error)

    def _serve(self, heard: socket.socket) -> None:
        while True:
            pause = self._go_on()
            if self._dismissed and not self._begun:
                return
            for key, _ in self._news(pause):
                if key.data is not None:
                    self._read(key.data)
                    self._go_on()
                    continue
                heard.recv(64)
                self._rung = False  # before looking: whoever comes later rings again
                with suppress(Empty):
                    while True:
                        self._connected(*self._made.get_nowait())
            self._give_up()
            if self._answers:
                self._advance(*self._answers.popleft())

    def _news(self, pause: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        self._looked = time.monotonic()
        if self._answers:
            return self._selector.select(0)
        return self._gate.clock.watch(self._selector, pause, self._patience())

    # -- tasks ----------------------------------------------------------------------------

    def _go_on(self) -> float | None:
        """Begin what can be; return the seconds until more can, None if only news will tell."""
        while True:
            self._take_up()
            pause = self._let_in()
            # Some may have ended at once, without a call, and made room.
            if self.hungry or self._dismissed or self._under_way() >= self._gate.most:
                return pause

    def _take_up(self) -> None:
        """Begin tasks, as many as the gate may ever let through."""
        self.hungry = True  # before looking: whoever comes later wakes this thread
        with suppress(Empty):
            while not self._dismissed and self._under_way() < self._gate.most:
                task = self._todo.get_nowait()
                if task is None:
                    self._dismissed = True
                else:
                    self._begun.add(task)
                    self._advance(task, None)
            self.hungry = False  # it looks again by itself when a place is free

    def _let_in(self) -> float | None:
        """Let in whoever may go; return as ``_go_on`` does."""
        while self._waiting:
            not_before, _, task = self._waiting[0]
            try:
                entered = self._gate.try_enter(not_before, len(self._answers))
                if entered is None:
                    return self._gate.pause(not_before)
            except Stopped as stopped:
                heapq.heappop(self._waiting)
                self._advance(task, stopped)
            else:
                heapq.heappop(self._waiting)
                self._advance(task, entered)
        return None

    def _under_way(self) -> int:
        return len(self._begun) - len(self._answers)

    def _advance(self, task: Task, come: object) -> None:
        """Let a task go on with what it waited for, or with an error, until it waits again."""
        while True:
            try:
                step = task.throw(come) if isinstance(come, Exception) else task.send(come)
            except StopIteration as end:
                self._begun.discard(task)
                self._done.put(end.value)
                return
            if not isinstance(step, tuple):
                # In the order of when they could have gone, so that none is always passed over.
                moment = max(step, self._gate.clock.now())
                heapq.heappush(self._waiting, (moment, next(self._order), task))
                return
            try:
                self._post(task, *step)
                return
            except Exception as error:
                come = error

    def _fail(self, error: Exception) -> None:
        """End all tasks, and those still to come, with an error."""
        mistake = Mistake(f"{type(error).__name__}: {error}")
        mistake.__cause__ = error
        self._gate.stop()
        for task in self._begun:
            self._end(task, mistake)
        while not self._dismissed:
            if (coming := self._todo.get()) is None:
                return
            next(coming)
            self._end(coming, mistake)

    def _end(self, task: Task, mistake: Mistake) -> None:
        """Have a task end; should it want to go on, it is told that all is over."""
        for told in (mistake, Stopped()):
            try:
                task.throw(told)
            except StopIteration as end:
                self._done.put(end.value)
                return
        task.close()

    # -- connections ----------------------------------------------------------------------

    def _post(self, task: Task, path: str, body: Any) -> None:
        """Send a request by a connection that is idle, else by a new one.

        On one that was idle for longer the service may have hung up meanwhile.
        """
        if self._gate.stopped:
            raise Stopped
        message = self._site.message(path, body)
        while self._idle:
            connection = self._idle.pop()
            if connection.proven or connection.is_quiet():
                self._send(connection, task, message)
                return
            self._drop(connection)
        self._have_helper()
        ticket = next(self._order)
        self._connecting[ticket] = task, time.monotonic(), message
        self._unconnected.put(ticket)

    def _have_helper(self) -> None:
        """Begin another helper, while there are few; one at least."""
        if len(self._helpers) == _HELPERS:
            return
        helper = threading.Thread(target=self._connect, name="strop-connect", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # the system has no more threads
            if not self._helpers:
                raise
        else:
            self._helpers.append(helper)

    def _connect(self) -> None:
        """What each helper does: make connections until there is a None."""
        while (ticket := self._unconnected.get()) is not None:
            if self._over or ticket not in self._connecting:
                continue
            made: Connection | Exception
            try:
                made = self._site.connect()
            except Exception as error:
                made = error
            self._made.put((ticket, made))
            self.wake()
            if self._over:
                self._close_made()

    def _connected(self, ticket: int, made: Connection | Exception) -> None:
        """A helper is done; meanwhile the call may have been given up."""
        if self._gate.stopped or ticket not in self._connecting:
            if isinstance(made, Connection):
                made.close()
            return
        task, _, message = self._connecting.pop(ticket)
        try:
            if isinstance(made, Exception):
                raise Unreachable.because(made)
            self._selector.register(made.socket, _READ, made)
            self._send(made, task, message)
        except Unreachable as failure:
            self._advance(task, failure)

    def _hang_up(self) -> None:
        """Close all connections, and let the helpers end."""
        self._over = True
        for _ in self._helpers:
            self._unconnected.put(None)
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._close_made()

    def _close_made(self) -> None:
        """Close what nobody waits for any more."""
        with suppress(Empty):
            while True:
                if isinstance(made := self._made.get_nowait()[1], Connection):
                    made.close()

    def _send(self, connection: Connection, task: Task, message: bytes) -> None:
        self._busy[connection] = task, time.monotonic()
        try:
            connection.begin(message)
        except OSError as error:
            self._drop(connection)
            raise Unreachable.because(error) from None
        self._watch(connection)

    def _read(self, connection: Connection) -> None:
        """Something has come, or there is room again."""
        if connection not in self._busy:
            if connection in self._idle and not connection.is_quiet():
                self._idle.remove(connection)
                self._drop(connection)
            return
        task, _ = self._busy.pop(connection)
        self._busy[connection] = task, time.monotonic()
        try:
            text = connection.go_on()
        except Refused as refusal:
            self._release(connection)
            self._advance(task, refusal)
        except (OSError, ValueError) as error:
            self._drop(connection)
            self._advance(task, Unreachable.because(error))
        else:
            if text is None:
                self._watch(connection)
            else:
                self._release(connection)
                self._answers.append((task, text))

    def _release(self, connection: Connection) -> None:
        if connection.kept:
            self._watch(connection)
            del self._busy[connection]
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _watch(self, connection: Connection) -> None:
        wanted = _READ | _WRITE if connection.blocked else _READ
        if self._selector.get_key(connection.socket).events != wanted:
            self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: Connection) -> None:
        self._busy.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.close()

    def _give_up(self) -> None:
        """End calls that were silent for too long, and what has no connection yet after a stop.

        What had come before ``_looked`` is read by now, however long this process was stopped.
        """
        while (waits := next(iter(self._connecting.items()), None)) is not None:
            ticket, (task, since, _) = waits
            if not self._gate.stopped and not self._is_late(since):
                break
            del self._connecting[ticket]
            self._advance(task, Stopped() if self._gate.stopped else _late())
        while (silent := next(iter(self._busy.items()), None)) is not None:
            connection, (task, since) = silent
            if not self._is_late(since):
                break
            self._drop(connection)
            self._advance(task, _late())

    def _is_late(self, since: float) -> bool:
        return since + self._site.timeout <= self._looked

    def _patience(self) -> float | None:
        """Seconds until a call has been silent for too long."""
        longest = [since for _, since, _ in islice(self._connecting.values(), 1)]
        longest += [since for _, since in islice(self._busy.values(), 1)]
        if not longest:
            return None
        return max(min(longest) + self._site.timeout - time.monotonic(), 0.0)


def _late() -> Unreachable:
    return Unreachable("timed out", timeout=True)
