"""Where a checkpoint is damaged: the tiny one is compared with digests of all its tensors.

A failed panel says that something is wrong; this says which tensor, when the right bytes are known.
python -m glm53ctl.bench.damage CHECKPOINT prints the digests to ship.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from glm53ctl.checkpoint import Checkpoint, open_checkpoint
from glm53ctl.paths import tiny_checkpoint

DIGEST_DIGITS = 8
DIGESTS_FILE = "tiny-digests.json"


def digests(checkpoint: Checkpoint) -> dict[str, str]:
    """The first hex digits of the SHA-256 of every tensor, by name. Reads every byte."""
    found: dict[str, str] = {}
    for name, tensor in sorted(checkpoint.tensors.items()):
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            found[name] = hashlib.sha256(file.read(tensor.nbytes)).hexdigest()[:DIGEST_DIGITS]
    return found


def document(checkpoint: Checkpoint) -> dict[str, str]:
    """The digests as they are shipped: joined in the order of the names, and a digest of the names."""
    return {"names": _names_digest(checkpoint), "digests": "".join(digests(checkpoint).values())}


def is_tiny(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has exactly the tensors of the bundled tiny one; not whether they are right."""
    shipped = _shipped()
    return shipped is not None and shipped["names"] == _names_digest(checkpoint)


def damaged_tensors(checkpoint: Checkpoint) -> tuple[str, ...] | None:
    """Names of tensors whose bytes are not the shipped ones; None when the right bytes are unknown."""
    shipped = _shipped()
    if shipped is None or shipped["names"] != _names_digest(checkpoint):
        return None
    right = _split(shipped["digests"])
    return tuple(
        f"{name} ({checkpoint.tensors[name].file.name})"
        for (name, found), wanted in zip(digests(checkpoint).items(), right, strict=True)
        if found != wanted
    )


def _split(joined: str) -> Iterator[str]:
    return (joined[i : i + DIGEST_DIGITS] for i in range(0, len(joined), DIGEST_DIGITS))


def _names_digest(checkpoint: Checkpoint) -> str:
    return hashlib.sha256("\n".join(sorted(checkpoint.tensors)).encode()).hexdigest()[:16]


def _shipped() -> dict[str, str] | None:
    try:
        text = (tiny_checkpoint().parent / DIGESTS_FILE).read_text(encoding="ascii")
    except OSError:
        return None
    return json.loads(text)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(open_checkpoint(Path(sys.argv[1])))) + "\n")
