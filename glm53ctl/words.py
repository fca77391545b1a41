"""Words that several texts share. Pure."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 thread", "2 threads". For nouns whose plural is a plain s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
