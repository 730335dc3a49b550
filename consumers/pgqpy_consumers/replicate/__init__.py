"""Tables copied to another database while changes go on: ``pgqpy run replicate``."""

from pgqpy_consumers.replicate._state import NotComparable, ReplicaError
from pgqpy_consumers.replicate.consumer import Replicate

__all__ = ["NotComparable", "ReplicaError", "Replicate"]
