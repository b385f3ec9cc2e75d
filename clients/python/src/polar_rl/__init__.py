"""Client of the Polar rollout server: submit tasks, read results as sessions end, and get samples to train."""

from ._transport import Event
from ._version import VERSION as __version__
from .client import Client
from .errors import PolarError
from .traces import (
    NO_VERSION,
    AdvantageMethod,
    Batch,
    Sample,
    advantages_of,
    reward_of,
    samples_of,
    to_batch,
    versions_of,
)

__all__ = [
    "NO_VERSION",
    "AdvantageMethod",
    "Batch",
    "Client",
    "Event",
    "PolarError",
    "Sample",
    "__version__",
    "advantages_of",
    "reward_of",
    "samples_of",
    "to_batch",
    "versions_of",
]
