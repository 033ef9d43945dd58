"""What `ssfl.api` raises itself; everything else is raised by the parts it calls.

TypeError                   a keyword that is no setting; the message names the nearest one
RunError                    a folder that holds no run

ssfl.method.errors          SettingsError, ModelFileError
ssfl.datasets.errors        ShardError, SourceError, DownloadError, PartitionError
ssfl.learning.errors        ModelError, TaskError, DivergedError
ssfl.server.errors          ModelUnusable: settings and model do not go together
                            BadValues: a client's values may not enter a sum

Settings are called as in the call: `local_epochs`, not `--local-epochs`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ssfl.datasets.errors import DataError
from ssfl.learning.errors import LearningError
from ssfl.method.errors import MethodError
from ssfl.server.errors import Refusal


class RunError(Exception):
    """There is no run to read; the message says what was looked for, and where runs are."""


@contextmanager
def flags_as_keywords() -> Iterator[None]:
    """Let errors speak of keywords where they speak of flags."""
    try:
        yield
    except (DataError, LearningError, MethodError, Refusal) as error:
        error.args = (replace_flags(str(error)),)
        raise


def replace_flags(text: str) -> str:
    """Return a message with its flags as keywords.

    Examples:
        >>> replace_flags("try a smaller --learning-rate")
        'try a smaller learning_rate'
    """
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda flag: flag[1].replace("-", "_"), text)
