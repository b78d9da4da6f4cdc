"""The error tree: everything Meadow raises on purpose.

MeadowError
├── ConfigError        a configuration file, key or value is wrong        (exit code 2)
├── AppError           an app folder cannot be used                       (exit code 2)
├── DataError          a site's data cannot be loaded or used
├── UpdateError        a client's update is refused
├── SecureAggregationError a secure sum cannot go on, or a message of one is refused
├── RunError           a run cannot go on
│   ├── QuorumError    too few clients answered a round
│   └── RunStoppedError somebody stopped the run
├── StoreError         a checkpoint, blob or journal cannot be written or used
│   └── DamageError    it is not what was written
├── TrackingError      an experiment tracker did not take a run
├── ProtocolError      a peer said something that the protocol does not allow
│   └── LimitError     a peer asked for more than a stated bound
├── IdentityError      a certificate, token or fingerprint is not acceptable
├── RefusedError       the data's owner does not allow what a server asks
└── UnreachableError   the other side did not answer

A message names the thing, the bound and the value, and what to do next.
"""

from __future__ import annotations

__all__ = [
    "NOTHING_TO_EVALUATE",
    "AppError",
    "ConfigError",
    "DamageError",
    "DataError",
    "IdentityError",
    "LimitError",
    "MeadowError",
    "ProtocolError",
    "QuorumError",
    "RefusedError",
    "RunError",
    "RunStoppedError",
    "SecureAggregationError",
    "StoreError",
    "TrackingError",
    "UnreachableError",
    "UpdateError",
]

NOTHING_TO_EVALUATE = 1001
"""Code of the error reply of a site without test data: no failure, nothing to report. Flower's
own strategies leave out error replies."""


class MeadowError(Exception):
    """Anything that Meadow raises on purpose; its text is one sentence for a person."""

    exit_code = 1


class ConfigError(MeadowError):
    """A configuration is wrong: the text names the file, the key and the remedy."""

    exit_code = 2


class AppError(MeadowError):
    """An app folder cannot be used: missing, malformed, or its code does not load."""

    exit_code = 2


class DataError(MeadowError):
    """A site's data cannot be loaded, or is not what the task needs."""


class NothingLearnedError(DataError):
    """There are no data to train on, or the training has no finite result."""


class UpdateError(MeadowError):
    """A client's update is refused: the text names the client, the field and the reason."""


class SecureAggregationError(MeadowError):
    """A secure sum cannot go on: what a peer said is not acceptable, or too few are left.

    Attributes:
        suspect: the client whose message or share was wrong, if one can be named.
    """

    def __init__(self, text: str, *, suspect: str | None = None) -> None:
        super().__init__(text)
        self.suspect = suspect


class RunError(MeadowError):
    """A run cannot go on."""


class AgreementError(RunError):
    """An executor trains another model than a client alone."""


class QuorumError(RunError):
    """A round ended with fewer updates than the run's quorum."""


class RunStoppedError(RunError):
    """Somebody stopped the run; its last committed round stays."""


class TrackingError(MeadowError):
    """An experiment tracker did not take a run; the run folder has everything."""


class StoreError(MeadowError):
    """Something on disk is damaged, missing or cannot be written."""


class DamageError(StoreError):
    """Something on disk is not what was written there: waiting does not help."""


class ProtocolError(MeadowError):
    """A peer's message is not what the protocol allows."""


class LimitError(ProtocolError):
    """A peer asked for more than a stated bound."""


class IdentityError(MeadowError):
    """A certificate, an enrolment token or a fingerprint is not acceptable."""


class RefusedError(MeadowError):
    """The data's owner does not allow what the server asks for."""


class UnreachableError(MeadowError):
    """The other side did not answer; trying again later may help."""
