"""The owner's policy: decides, without side effects, whether an instruction may run on the data."""

from __future__ import annotations

from ...config.client_config import PolicyConfig
from ...errors import RefusedError
from ...privacy.secagg.terms.terms import is_secure, is_talk
from ...transport.blobs import blobs_of
from ...transport.fleet_pb2 import Instruction
from .announcements import announced_steps, noise_terms_of

__all__ = ["NotInstalledError", "check", "is_training"]


class NotInstalledError(RefusedError):
    """The requested version of the app is not installed; the owner may approve it."""


def check(
    instruction: Instruction, policy: PolicyConfig, *, installed: str | None, rounds_today: int
) -> None:
    """Check that the owner allows an instruction.

    `installed` is the SHA-256 of the installed app of that name, None if there is none;
    `rounds_today` is the number of trainings on the data on this UTC day.

    Raises:
        RefusedError: the owner does not allow it; the server's operator reads the message too.
    """
    app = instruction.app
    if installed is None:
        raise NotInstalledError(f"app {app.name[:80]!r} is not installed here")
    asked = app.sha256.removeprefix("sha256:")
    if installed != asked:
        raise NotInstalledError(
            f"app {app.name!r} is installed here as sha256:{installed[:12]}..., "
            f"the run is of sha256:{asked[:12]}...; install the same files on both sides"
        )
    if policy.allowed_apps and f"sha256:{installed}" not in policy.allowed_apps:
        raise RefusedError(f"app {app.name!r} is not among policy.allowed_apps")
    sent_bytes = sum(blob.size_bytes for blob in blobs_of(instruction.envelope))
    if sent_bytes > policy.received_bytes_max:
        raise RefusedError(
            f"policy.received_bytes_max is {policy.received_bytes_max}, "
            f"this instruction has tensors of {sent_bytes} bytes"
        )
    asked_for = instruction.envelope.metadata.message_type
    # the cohort of a session is checked when it begins; other steps may have fewer clients
    if instruction.cohort_clients < policy.min_cohort and not is_talk(asked_for):
        raise RefusedError(
            f"policy.min_cohort is {policy.min_cohort}, "
            f"this round has {instruction.cohort_clients} clients"
        )
    if policy.require_secure_aggregation and not instruction.secure_aggregation:
        raise RefusedError("policy.require_secure_aggregation is set, and this run does not use it")
    if policy.require_secure_aggregation and not is_secure(asked_for):
        raise RefusedError(
            f"policy.require_secure_aggregation is set, and the answer to a {asked_for[:40]!r} "
            "message would reveal this client's own result"
        )
    if policy.require_differential_privacy and not instruction.differential_privacy:
        raise RefusedError(
            "policy.require_differential_privacy is set, and this run does not use it"
        )
    if policy.require_differential_privacy or policy.noise:
        _check_noise(instruction, policy)
    bound = policy.rounds_per_day
    if bound is not None and is_training(instruction) and rounds_today >= bound:
        raise RefusedError(f"policy.rounds_per_day is {bound}, and {rounds_today} were trained")


def _check_noise(instruction: Instruction, policy: PolicyConfig) -> None:
    """Check that the answer to an instruction has noise, added where the owner requires it."""
    key = "policy.noise" if policy.noise else "policy.require_differential_privacy"
    asked_for = instruction.envelope.metadata.message_type
    if is_talk(asked_for):
        return  # its round was checked when it began
    noise, steps = noise_terms_of(instruction), announced_steps(instruction)
    if not is_training(instruction) or (noise is None and steps is None):
        raise RefusedError(
            f"{key} is set, and the answer to this {asked_for[:40]!r} message carries no noise"
        )
    places = set() if steps is None else {"client"}
    places |= set() if noise is None else {noise.place}
    if policy.noise and not places & set(policy.noise):
        raise RefusedError(
            f"policy.noise is {list(policy.noise)}, and this round's noise is added by: "
            f"{', '.join(sorted(places))}"
        )


def is_training(instruction: Instruction) -> bool:
    """Return whether an instruction trains on the data, rather than evaluating or querying."""
    category = instruction.envelope.metadata.message_type.partition(".")[0]
    return category not in ("evaluate", "query")
