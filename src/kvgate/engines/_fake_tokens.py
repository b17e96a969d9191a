"""The fake engine's tokenizer: 512 ids, reversible. The first 256 are bytes, the others pieces of common text.

Text is cut greedily, the longest piece first, so English runs at about three bytes a token.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence

VOCAB = 512

_WORDS = (
    " the| of| and| to| in| is| that| for| it| as| with| was| on| be| at| by| this| are| or| from| an| have| not| you"
    "| which| one| all| we| can| has| but| their| they| were| his| her| its| more| will| if| no| out| so| what| up"
    "| there| when| who| than| them| been| would| some| time| these| other| into| only| two| may| then| do| first"
    "| any| my| now| such| like| our| over| me| even| most| after| also| many| before| must| through| where| much"
    "| your| way| down| should| because| each| just| those| people| how| too| little| good| make| very| year| still"
    "| see| work| long| get| here| between| both| under| never| day| same| another| know| while| last| might| us"
    "| great| old| since| against| go| come| right| used| take| three| number| code| answer| name| date| text| value"
    "|The|ing|tion|er|ed|es|ly|al|en|re|st|an|on|in|or|ar|at|it|is|ou|th|he|nd|nt|ti|io|le|ve|co|me|de|ri|ro|ic|li"
    "|ra|el|ch|ll|be|ma|ne|un|la|us|pe|tr|ac|ce|ha|di|si|om|ur|ge|et|em|ul|ad|am|ol|id|ir|lo"
)
_MARKS = ['{"', '": "', '", "', '": ', ', "', '"}', '": [', "}\n", "\n\n", ". ", ", ", ": ", "```", "    ", "0 ", "00"]


def _pieces() -> list[bytes]:
    known = dict.fromkeys([*_MARKS, *_WORDS.split("|")])
    # Letters after a blank, then pairs of digits, fill the table to exactly 512 ids.
    more = [*(f" {c}" for c in "abcdefghijklmnopqrstuvwxyz"), *(f"{n:02d}" for n in range(100))]
    for text in more:
        if len(known) == VOCAB - 256:
            break
        known.setdefault(text)
    return [text.encode() for text in known][: VOCAB - 256]


_PIECES = _pieces()
_IDS = {piece: 256 + i for i, piece in enumerate(_PIECES)} | {bytes([b]): b for b in range(256)}
_BYTES = {i: piece for piece, i in _IDS.items()}
_CUT = re.compile(b"|".join(re.escape(p) for p in sorted(_PIECES, key=len, reverse=True)) + b"|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """Token ids of a text."""
    return [_IDS[piece] for piece in _CUT.findall(text.encode("utf-8", "replace"))]


def decode(ids: Iterable[int]) -> str:
    """The text of token ids; ids outside the table and broken characters become U+FFFD."""
    return b"".join(_BYTES.get(i, b"\xff") for i in ids).decode("utf-8", "replace")


def stream_pieces(ids: Sequence[int]) -> list[str]:
    """The text that each token adds; a character split over tokens shows up with its last one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = len(ids) - 1
    return [decoder.decode(_BYTES.get(i, b"\xff"), final=at == last) for at, i in enumerate(ids)]
