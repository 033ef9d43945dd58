"""Who has the final model."""

from ssfl.server.run.quorum import is_away
from ssfl.server.run.state import RunState


def everyone_has_it(state: RunState) -> bool:
    """Tell whether every member that is still here has stored the final model."""
    return state.finished and all(
        m.has_final_model or is_away(state, m.client) for m in state.members.values()
    )
