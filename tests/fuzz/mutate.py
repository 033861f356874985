"""Seeded mutations of bytes: equal seeds give equal inputs on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

PIECES = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\\ud800", b"\r", b"\n",
    b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"<", b">", b":", b"=", b",", b";", b"\t", b" ",
    b"null", b"true", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"9" * 25, b"9" * 5000,
    b"[" * 3000, b"<query>", b"</query>", b"<think>", b"```", b"{}", b'""', "²".encode(),
    "٣".encode(),
]  # fmt: skip


def mutations(seeds: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield the seeds and then mutations of them, ``count`` inputs in all."""
    yield from seeds[:count]
    random_ = random.Random(seed)
    for _ in range(count - len(seeds)):
        data = random_.choice(seeds)
        for _ in range(random_.choice((1, 1, 2, 3, 8))):
            data = _change(random_, data, random_.choice(seeds))
        yield data


def _change(random_: random.Random, data: bytes, other: bytes) -> bytes:
    """Delete, repeat, insert, replace or flip bytes, or cross two inputs over."""
    first, last = sorted(random_.randint(0, len(data)) for _ in range(2))
    at = random_.randint(0, len(other))
    kind = random_.randrange(6)
    if kind == 0:
        return data[:first] + data[last:]
    if kind == 1:
        return data[:last] + data[first:last] * random_.choice((1, 2, 50)) + data[last:]
    if kind == 2:
        return data[:first] + random_.choice(PIECES) + data[first:]
    if kind == 3:
        return data[:first] + random_.choice(PIECES) + data[last:]
    if kind == 4 and data:
        place = min(first, len(data) - 1)
        return data[:place] + bytes([data[place] ^ (1 << random_.randrange(8))]) + data[place + 1 :]
    return data[:first] + other[at:]
