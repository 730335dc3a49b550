"""Tables copied to another database while changes go on: ``pgqpy run replicate``."""

from pgqpy_consumers.replicate.consumer import Replicate
from pgqpy_consumers.replicate.errors import NotComparable, ReplicaError

__all__ = ["NotComparable", "ReplicaError", "Replicate"]
