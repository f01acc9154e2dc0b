"""What a backend says of an answer token by token (ids, log-probabilities, masks), as it is carried beside the log.

The bytes are the backend's. Nobody here reads them: they are one blob a turn, which ``model_responded`` names by its hash.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from .events import TokenData

TOKEN_DATA_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one turn. More is counted and not kept: the answer itself was paid for, and stands."""


def kept_token_data(data: bytes | None, *, withheld: bool) -> tuple[TokenData | None, bytes | None]:
    """What the event says, and the blob that goes with it. ``withheld``: something is declared to be redacted, which a text that is
    spelled out token by token may hold and nobody could find."""
    if not data:
        return None, None
    if withheld or len(data) > TOKEN_DATA_BYTES_MAX:
        return TokenData(None, len(data)), None
    return TokenData(sha256(data).digest(), len(data)), data
