"""How long sequences are: a histogram instead of one cap. Real concurrency depends on it, not on the longest one.

A file is text: `tokens,count` a line, or one length a line; a first line of words, blank lines and `#` comments are
skipped. Sequences of a pool are independent draws, so n of them take n times the mean, give or take sqrt(n) standard
deviations.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.files import open_bounded
from kvgate.core.source import Source

#: Lines are counted while they are read, so a wrong file costs no memory.
MAX_LINES = 5_000_000
MAX_LINE_CHARS = 200
MAX_TOKENS = 1 << 40
#: 95 % of a normal distribution lie below its mean plus this many standard deviations.
Z_95 = 1.6448536269514722
_HOW = "write one length a line, or tokens,count"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of sequences in tokens (prompt and answer together), with how often each occurs.

    Attributes:
        counts: (tokens, count) in rising order of tokens, counts over 0.
    """

    counts: tuple[tuple[int, int], ...]
    source: Source

    @property
    def total(self) -> int:
        return sum(n for _, n in self.counts)

    @property
    def longest(self) -> int:
        return self.counts[-1][0]

    @property
    def mean(self) -> float:
        return sum(tokens * n for tokens, n in self.counts) / self.total

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of the sequences do not exceed."""
        need, seen = math.ceil(share * self.total), 0
        for tokens, n in self.counts:
            seen += n
            if seen >= need:
                return tokens
        return self.longest

    def mean_and_deviation(self, cost: Callable[[int], int]) -> tuple[float, float]:
        """Mean and standard deviation of `cost(tokens)` over the sequences."""
        costs = [(cost(tokens), n) for tokens, n in self.counts]
        mean = sum(c * n for c, n in costs) / self.total
        return mean, math.sqrt(sum(n * (c - mean) ** 2 for c, n in costs) / self.total)


def likely_count(budget_bytes: int, mean: float, deviation: float) -> int:
    """How many random sequences fit together in 19 of 20 draws: n mean + 1.645 sqrt(n) deviation <= budget.

    The normal approximation holds from a few dozen sequences on; below that a plan should look at the longest one.
    """
    if mean <= 0:
        return 0
    spread = Z_95 * deviation
    root = (-spread + math.sqrt(spread * spread + 4 * mean * budget_bytes)) / (2 * mean)
    return math.floor(root * root + 1e-9)


def read_lengths(path: Path) -> Lengths:
    """Read a file of lengths.

    Raises:
        UserError: no such file, no lengths in it, a length or count that cannot be, or a file that is not text.
    """
    counts: Counter[int] = Counter()
    try:
        with io.TextIOWrapper(open_bounded(path), encoding="utf-8-sig", errors="strict") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_CHARS + 1), ""), start=1):
                if len(line) > MAX_LINE_CHARS or number > MAX_LINES:
                    raise UserError(f"{path}: line {number} is too long, or the file has too many lines", fix=_HOW)
                row = line.split("#", 1)[0].strip()
                if row and not (number == 1 and re.match(r"[A-Za-z_\"]", row)):
                    tokens, count = _row(row, path, number)
                    counts[tokens] += count
    except OSError as e:
        raise UserError(f"lengths {str(path)!r} cannot be read: {e.strerror or e}", fix="give a text file") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path} is not a text file", fix=_HOW) from e
    kept = tuple(sorted((t, n) for t, n in counts.items() if n > 0))
    if not kept:
        raise UserError(f"{path} holds no lengths", fix=_HOW)
    return Lengths(kept, Source("file", str(path)))


def _row(row: str, path: Path, number: int) -> tuple[int, int]:
    cells = [c for c in re.split(r"[,;\t ]+", row) if c]
    if not 1 <= len(cells) <= 2 or not all(re.fullmatch(r"\d{1,15}", c) for c in cells):
        raise UserError(f"{path}, line {number}: {row[:40]!r} is no length in whole tokens", fix=_HOW)
    tokens, count = int(cells[0]), int(cells[1]) if len(cells) == 2 else 1
    if not 1 <= tokens <= MAX_TOKENS:
        raise UserError(f"{path}, line {number}: a sequence of {tokens} tokens cannot be", fix=_HOW)
    return tokens, count
