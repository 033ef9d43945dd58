"""The exceptions of `ssfl.api`, its own and those of the parts it calls.

TypeError                   an unknown keyword; the message names the closest setting
RunError                    a folder without a run

ssfl.method.errors          SettingsError, ModelFileError
ssfl.datasets.errors        ShardError, SourceError, DownloadError, PartitionError
ssfl.learning.errors        ModelError, TaskError, DivergedError
ssfl.server.errors          ModelUnusable: settings and model do not fit together
                            BadValues: a client's values cannot be summed

Messages name settings as keywords: `local_epochs`, not `--local-epochs`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ssfl.datasets.errors import DataError
from ssfl.learning.errors import LearningError
from ssfl.method.errors import MethodError
from ssfl.server.errors import Refusal


class RunError(Exception):
    """There is no run to read; the message names the missing file and where runs are."""


@contextmanager
def flags_as_keywords() -> Iterator[None]:
    """Replace flags by keywords in the messages of exceptions."""
    try:
        yield
    except (DataError, LearningError, MethodError, Refusal) as error:
        text = re.sub(r"--([a-z][a-z0-9-]*)", lambda flag: flag[1].replace("-", "_"), str(error))
        error.args = (text,)
        raise
