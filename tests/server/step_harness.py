"""A coordinator brought to its SCORE or TRAIN step, and uploads to it, without a network."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from server.run_loop_harness import NoPeer, caller_of, context_of
from ssfl.codec import values_only
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import values_digest
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.limits import Limits
from ssfl.server.rpc.upload_service import UploadService
from ssfl.server.run import events
from ssfl.server.run.state import Step
from ssfl.server.storage.upload_files import PartialUpload, StoredValues
from ssfl.server.uploads.receive import UploadReceiver
from ssfl.strategies.contract import ClientId, Work
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import saliency_pb2, transfer_pb2, update_pb2

C1, C2 = ClientId("c1"), ClientId("c2")
NUM_SAMPLES = 10
Vector = npt.NDArray[np.float32]


def receiver_of(coordinator: Coordinator) -> UploadReceiver:
    """Return a receiver with eight slots."""
    parts = (coordinator.spool, coordinator.ledger, coordinator.counters)
    return UploadReceiver(*parts, coordinator.refusals.count_error, slots=8, no_progress_s=30.0)


def staged(part: PartialUpload, data: bytes) -> StoredValues:
    """Write values next to an upload, as decoding does."""
    with part.stage() as staged:
        staged.file.write(data)
    return staged.values


def announced(data: bytes, encoding: int, reference_digest: bytes = b"") -> transfer_pb2.Payload:
    """Return the announcement of a payload."""
    return transfer_pb2.Payload(
        encoding=transfer_pb2.Encoding.Name(encoding),
        num_bytes=len(data),
        digest=sha256(data).digest(),
        reference_digest=reference_digest,
    )


class Steps:
    """Two clients of a coordinator; the test decides what they send."""

    def __init__(self, coordinator: Coordinator, manifest: Manifest) -> None:
        self.coordinator = coordinator
        self.manifest = manifest
        self.context = context_of(coordinator)
        self.service = UploadService(self.context, receiver_of(coordinator), Limits())

    def caller(self, client: ClientId) -> pb.Caller:
        return caller_of(self.coordinator, client)

    async def begun(self) -> None:
        """Let both clients join, and the first describe the model."""
        for client in (C1, C2):
            digest = self.manifest.digest.hex()
            await self.coordinator.run.post(events.Joined(client, "t", NUM_SAMPLES, digest, "cpu"))
        initial = initial_vector(self.manifest, self.coordinator.run.state.settings.seed)
        header = pb.InitialModel(manifest=self.manifest.json, initial_digest=values_digest(initial))
        request = pb.SendInitialRequest(caller=self.caller(C1), header=header)
        _ = [answer async for answer in self.service.SendInitial(stream(request), NoPeer())]

    async def scoring(self) -> "Steps":
        """Bring the run to its SCORE step."""
        await self.begun()
        return await self.reaches(Work.SCORE)

    async def training(self) -> "Steps":
        """Bring the run to its first round; the scores of c2, which increase, decide the mask."""
        await self.scoring()
        for client in (C1, C2):
            data = bytes(values_only.encode(np.arange(self.manifest.num_masked, dtype=np.float32)))
            await self.scores(announced(data, transfer_pb2.ENCODING_DENSE), data, client)
        return await self.reaches(Work.TRAIN)

    async def reaches(self, work: Work, round_number: int = 0) -> "Steps":
        """Wait until a step is open."""

        def there() -> bool:
            step = self.coordinator.run.state.step
            return step is not None and (step.work, step.round_number) == (work, round_number)

        while not there():
            changed = self.coordinator.run.tasks_changed()
            if not there():
                await changed.wait()
        return self

    @property
    def step(self) -> Step:
        assert self.coordinator.run.state.step is not None
        return self.coordinator.run.state.step

    @property
    def base(self) -> Vector:
        model = self.coordinator.run.model
        assert model is not None and model.values is not None
        return model.values

    async def scores(
        self, payload: transfer_pb2.Payload, data: bytes, client: ClientId = C1
    ) -> list[str]:
        """Report scores; return the answers as text."""
        model = self.coordinator.run.model
        assert model is not None
        header = saliency_pb2.SaliencyReport(
            manifest_digest=self.manifest.digest,
            initial_digest=model.whole_digest,
            step=self.step.number,
            num_samples=NUM_SAMPLES,
            scores=payload,
        )
        request = pb.ReportSaliencyRequest(caller=self.caller(client), header=header)
        chunks = [pb.ReportSaliencyRequest(chunk=one) for one in chunks_of(data)]
        answers = self.service.ReportSaliency(stream(request, *chunks), NoPeer())
        return [word(one) async for one in answers]

    def update_header(self, payload: transfer_pb2.Payload) -> update_pb2.SparseUpdate:
        model = self.coordinator.run.model
        assert model is not None and model.mask is not None
        return update_pb2.SparseUpdate(
            mask_digest=model.mask.digest,
            mask_epoch=model.mask_epoch,
            base_digest=model.base_digest,
            step=self.step.number,
            round_number=self.step.round_number,
            attempt=self.step.attempt,
            num_samples=NUM_SAMPLES,
            values=payload,
        )

    async def update(
        self,
        payload: transfer_pb2.Payload,
        data: bytes,
        client: ClientId = C1,
        *,
        start: int = 0,
        stop: int | None = None,
        header: update_pb2.SparseUpdate | None = None,
    ) -> list[str]:
        """Send an update, or the bytes of it from `start` to `stop`; return the answers."""
        header = header or self.update_header(payload)
        request = pb.SendUpdateRequest(caller=self.caller(client), header=header)
        chunks = [pb.SendUpdateRequest(chunk=one) for one in chunks_of(data[:stop], start)]
        answers = self.service.SendUpdate(stream(request, *chunks), NoPeer())
        return [word(one) async for one in answers]

    def spooled(self, client: ClientId = C1) -> dict[str, bytes]:
        """Return the spooled files of a client in this step, by suffix."""
        folder, found = self.coordinator.spool.root / str(self.step.number), dict[str, bytes]()
        for path in folder.glob(f"{client}.*"):
            with suppress(FileNotFoundError):  # it was renamed in the meantime
                found[path.suffix] = path.read_bytes()
        return found


def chunks_of(data: bytes, start: int = 0) -> list[transfer_pb2.Chunk]:
    """Cut a payload into small chunks."""
    pieces = [(at, data[at : at + 16]) for at in range(start, len(data), 16)]
    return [transfer_pb2.Chunk(offset=at, data=one, crc32=zlib.crc32(one)) for at, one in pieces]


async def stream(*requests: Any) -> AsyncIterator[Any]:
    """Yield requests as a call does."""
    for request in requests:
        await asyncio.sleep(0)
        yield request


def word(answer: Any) -> str:
    """Return an answer to an upload as text."""
    if answer.WhichOneof("part") == "grant":
        return f"grant {answer.grant.offset}"
    return transfer_pb2.Outcome.Name(answer.receipt.outcome).removeprefix("OUTCOME_").lower()
