"""A client's part in a run: load task and shard, connect, run the agent."""

import logging

from ssfl.client.agent import Agent, Identity
from ssfl.client.client_stats import ClientStats
from ssfl.client.config import Access, ClientConfig
from ssfl.client.connection import Connection, ReconnectBackoff, open_channel
from ssfl.client.errors import Refused
from ssfl.client.local_state import LocalState
from ssfl.client.local_work import Site
from ssfl.datasets.errors import DataError
from ssfl.datasets.shards.shard_file import class_counts, find_shard
from ssfl.learning.device import choose_device, fingerprint, prepare_torch, working_on
from ssfl.learning.errors import LearningError
from ssfl.learning.load_task import load_task
from ssfl.method.errors import MethodError
from ssfl.program.exits import ExitCode, ProgramError, Terminated
from ssfl.program.output_dir import check_writable

log = logging.getLogger("ssfl.client")


def take_part(config: ClientConfig, client_id: str, access: Access) -> int:
    """Take part in a run; return the exit code."""
    check_writable(config.out_dir, "--out-dir")
    stats = ClientStats()
    if config.metrics_port is None:
        return _take_part(config, client_id, access, stats)
    from ssfl.client.metrics import serve_metrics  # imported only if metrics are served

    server = serve_metrics(stats, config.metrics_host, config.metrics_port)
    try:
        return _take_part(config, client_id, access, stats)
    finally:
        server.stop()


def _take_part(config: ClientConfig, client_id: str, access: Access, stats: ClientStats) -> int:
    try:
        prepare_torch(config.threads)
        device = choose_device(config.device)
        task = load_task(config.task)
        shard = task.load_shard(find_shard(config.data, config.data_root))
    except (DataError, LearningError) as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    classes = class_counts(shard.train_y) if shard.num_classes else {}
    counts = classes if config.share_class_counts else {}
    labels = tuple(classes) if config.share_labels else ()
    identity = Identity(client_id, shard.num_samples, fingerprint(device), counts, labels)
    stats.num_samples = shard.num_samples
    log.info(
        "shard loaded",
        extra={
            "client": client_id,
            "num_samples": shard.num_samples,
            "device": str(device),
            "fingerprint": identity.fingerprint,
        },
    )
    connection = Connection(lambda: open_channel(config.coordinator, access.tls), access.token)
    backoff = ReconnectBackoff(
        config.coordinator, config.give_up_after,
        diagnose=access.diagnose, retry=connection.reopen, stats=stats,
    )  # fmt: skip
    local = LocalState(config.state_dir / client_id)
    agent = Agent(
        connection, identity, local, backoff,
        lambda settings, known: Site.build(task, shard, settings, client_id, device, known),
        config.out_dir, stats,
    )  # fmt: skip
    try:
        with working_on(device):
            model = agent.run()
    except (KeyboardInterrupt, Terminated):
        agent.leave("stopped by its operator")
        raise
    except Refused as error:
        agent.leave(str(error))
        raise ProgramError(f"the coordinator refused: {error}", ExitCode.REFUSED) from error
    except (DataError, LearningError, MethodError) as error:
        agent.leave(str(error))
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    except OSError as error:
        raise ProgramError(
            f"{error}: nothing is lost; free up space or fix the disk, then restart the client",
            ExitCode.STATE,
        ) from error
    finally:
        connection.close()
    local.forget_ended()  # last step before the process exits
    if model is None:
        log.info("the run was stopped before it had a model")
        return int(ExitCode.STOPPED)
    log.info("final model stored", extra={"folder": str(model)})
    return int(ExitCode.DONE)
