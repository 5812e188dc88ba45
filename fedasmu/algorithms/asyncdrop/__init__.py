"""AsyncDrop: the method, and the sub-networks that its devices train."""

from fedasmu.algorithms.asyncdrop.method import AsyncDrop

__all__ = ["AsyncDrop"]
