"""Personal models: a few more local epochs from the final model, inside the same mask."""

from dataclasses import replace

from ssfl.method.settings import RunSettings


def personal_settings(settings: RunSettings) -> RunSettings:
    """Return the settings for training a personal model at the end of a run.

    It counts as the round after the last one: it has its own order of samples. Its learning rate
    continues the run's or, with `personalize_lr` restart, is that of the first round.
    """
    return replace(
        settings,
        local_epochs=settings.personalize_epochs,
        local_steps=0,
        lr_decay=1.0 if settings.personalize_lr == "restart" else settings.lr_decay,
    )
