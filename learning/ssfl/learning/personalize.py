"""A model of one's own: a few more local epochs from the final model, inside the same mask."""

from dataclasses import replace

from ssfl.method.settings import RunSettings


def personal_settings(settings: RunSettings) -> RunSettings:
    """Return the settings that local training has at the end of a run.

    It counts as the round after the last one: its samples come in an order of their own, and its
    learning rate goes on where the run's ended or, with `personalize_lr` restart, is the first's.
    """
    return replace(
        settings,
        local_epochs=settings.personalize_epochs,
        local_steps=0,
        lr_decay=1.0 if settings.personalize_lr == "restart" else settings.lr_decay,
    )
