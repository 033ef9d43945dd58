"""What a simulated client has on disk, and the messages and results it makes.

Its work is arithmetic that depends only on the client, the base, the round and its memory
(model.py).
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.model import memory_after, own_mask_of, update_of
from simulation.plan import Client
from ssfl.client.coding import ENCODINGS
from ssfl.client.memory import ClientMemory
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.mask import Mask
from ssfl.server.uploads.update_parts import whole_payload
from ssfl.strategies.contract import Answer as Reply
from ssfl.strategies.contract import Received
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import saliency_pb2, transfer_pb2, update_pb2

Vector = npt.NDArray[np.float32]
MEMORY = "memory"  # the vector that a client keeps
NOTHING = Evaluation(0, 0, 0.0)


@dataclass
class Answer:
    """Finished work that waits for its receipt."""

    kind: str  # "scores" or "values"
    step: int
    header: bytes
    payload: bytes

    @property
    def digest(self) -> str:
        """The digest by which the journal names it."""
        if self.kind == "scores":
            return hashlib.sha256(self.payload).hexdigest()
        return whole_payload(update_pb2.SparseUpdate.FromString(self.header)).digest.hex()


@dataclass
class Site:
    """The data of a client that survives a crash."""

    name: str
    num_samples: int
    host: str
    knows_references: bool
    memory: ClientMemory
    answer: Answer | None = None
    sent: list[Answer] = field(default_factory=list)  # for a repetition
    has_final_model: bool = False
    callers: list[pb.Caller] = field(default_factory=list)  # of all its sessions

    @classmethod
    def of(cls, planned: Client, folder: Path) -> "Site":
        """Return a site of a plan, which keeps its memory in a folder."""
        (folder / planned.name).mkdir(parents=True)
        memory = ClientMemory(folder / planned.name)
        return cls(
            planned.name, planned.num_samples, planned.host, planned.knows_references, memory
        )

    @property
    def token(self) -> bytes:
        return hashlib.sha256(self.name.encode()).digest()[:16]

    @property
    def encodings(self) -> list[Any]:
        without = ("ENCODING_SCORES",)
        all_of_them = [one for one in ENCODINGS if one not in without]
        return all_of_them if self.knows_references else [1, 2, 3, 4]


def honest_reply(
    client: str, received: Received, base_digest: str, memory: Vector | None
) -> tuple[Reply, Vector | None]:
    """Return the answer to a training step, and what the client keeps after it.

    `memory` is what it kept before; None if the strategy's clients keep nothing.
    """
    number, mask, base = received.round_number, received.mask, received.values
    bits = None
    if received.task:  # the word of a strategy whose clients move their masks
        kept = np.zeros(mask.size, dtype=np.bool_)
        kept[own_mask_of(client, places_of(mask), base_digest)] = True
        bits = Mask.from_bools(kept)
        mask, base = bits, bits.gather(mask.scatter(base))
    values = update_of(client, base, base_digest, number)
    if memory is not None:
        values = values + mask.gather(memory) / np.float32(8192)
        memory = memory_after(client, memory, base_digest, number)
    return Reply(LocalResult(values, 1.0, NOTHING, NOTHING), bits), memory


def request_of(answer: Answer, caller: pb.Caller) -> tuple[str, Any]:
    """Return the method and the first request of an upload."""
    if answer.kind == "scores":
        report = saliency_pb2.SaliencyReport.FromString(answer.header)
        return "ReportSaliency", pb.ReportSaliencyRequest(caller=caller, header=report)
    update = update_pb2.SparseUpdate.FromString(answer.header)
    return "SendUpdate", pb.SendUpdateRequest(caller=caller, header=update)


def update_header(work: pb.TrainTask, step: int, num_samples: int) -> update_pb2.SparseUpdate:
    return update_pb2.SparseUpdate(
        mask_digest=work.mask.mask_digest,
        mask_epoch=work.mask.mask_epoch,
        base_digest=work.base_digest,
        step=step,
        round_number=work.round_number,
        attempt=work.attempt,
        num_samples=num_samples,
        training_loss=1.0,
    )


def payload_of(data: bytes, encoding: Any) -> transfer_pb2.Payload:
    digest = hashlib.sha256(data).digest()
    return transfer_pb2.Payload(encoding=encoding, num_bytes=len(data), digest=digest)


def places_of(mask: Mask) -> list[int]:
    """Return the places that a mask keeps."""
    places: list[int] = np.flatnonzero(mask.bools()).tolist()
    return places
