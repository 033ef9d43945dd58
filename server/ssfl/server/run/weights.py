"""The weight of a client in a mean: its claimed samples, within the limit of the run."""

from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.server.errors import TooManySamples
from ssfl.server.run.state import Member


def weight_of(member: Member, settings: RunSettings) -> int:
    """Return the number of samples by which a member is weighted."""
    if settings.max_samples and settings.samples_over_max == "clip":
        return min(member.num_samples, settings.max_samples)
    return member.num_samples


def check_samples(client: ClientId, num_samples: int, settings: RunSettings) -> None:
    """Raise TooManySamples if a client claims more samples than the run accepts."""
    limit = settings.max_samples
    if limit and num_samples > limit and settings.samples_over_max == "refuse":
        raise TooManySamples(
            f"{client} claims {num_samples} training samples, this run takes at most {limit} "
            "(--max-samples of the coordinator; with --samples-over-max clip it would weigh "
            f"as if it had {limit})"
        )
