"""The answer to INITIALIZE: a client's description of the model that the run will train."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ssfl.codec import values_only
from ssfl.durable.failpoints import failpoint
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.server.accounting.ledger import encoding_word
from ssfl.server.errors import InvalidRequest, JoinAgain, ManifestMismatch
from ssfl.server.loop.first_model import begin_model, initialized
from ssfl.server.loop.limits import Limits
from ssfl.server.loop.run_loop import RunLoop
from ssfl.server.run.events import Reply
from ssfl.server.run.quorum import is_away
from ssfl.server.run.state import Member, initializer
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.server.storage.upload_files import PartialUpload
from ssfl.server.uploads.decode import check_payload
from ssfl.server.uploads.step_upload import receipt_of
from ssfl.server.uploads.verify import ValueCheck, VerifiedUpload, verify_plain
from ssfl.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

Check = Callable[[], None]  # raises JoinAgain if the build is no longer wanted
MIN_SENT_PER_S = 32 << 10  # bytes of a model's weights; a slower client is passed over (ticker.py)
MIN_BUILT_PER_S = 1_000_000  # values that a seed determines, of a slow machine


@dataclass(frozen=True, slots=True)
class _Build:
    """A build of the run's model, in progress or done."""

    key: tuple[object, ...]
    abandoned: threading.Event
    reply: asyncio.Future[Reply]


class ModelDescriptions:
    """Checks which client may describe the run's model, and runs one build of it at a time.

    A build ends early if another client is asked and describes its model, or if its own client
    describes another model. The next build starts when the replaced one has ended, after at most
    one more block of values. So two models are never in memory at once. A repeated call waits for
    the same build.

    A late description comes from a client that was passed over. It never replaces a build, and a
    client has at most one late build until the next client is passed over.
    """

    def __init__(self, run: RunLoop, spool: Spool, store: Store, limits: Limits) -> None:
        self.run = run
        self.spool = spool
        self.store = store
        self.limits = limits
        self._current: _Build | None = None
        self._late: dict[ClientId, tuple[ClientId, ...]] = {}  # `passed_over` at its late build

    def receipt_if_known(self) -> transfer_pb2.Receipt | None:
        """Return a receipt if the run already has its model; None before that."""
        known = self.run.state.manifest_digest
        return receipt_of(Reply.ALREADY_ACCEPTED) if known else None

    def check_asked(self, member: Member) -> None:
        """Raise JoinAgain unless this client was asked, with the model that it joined with last.

        A client that was passed over may still answer.
        """
        state = self.run.state
        now = state.members[member.client]
        is_late = member.client in state.passed_over and not is_away(state, member.client)
        if not is_late and not self.is_asked(member.client):
            raise JoinAgain("another client was asked to describe the model: join again")
        if now.manifest_digest != member.manifest_digest:
            raise JoinAgain(f"{member.client} has since joined with another model: join again")

    def is_asked(self, client: ClientId) -> bool:
        """Return True if this is the client that is asked to describe the model now."""
        asked = initializer(self.run.state)
        return asked is not None and asked.client == client

    def drop_other_parts(self, client: ClientId) -> None:
        """Delete the partial models of clients that are neither this one nor asked now."""
        asked = initializer(self.run.state)
        self.spool.drop_clients_but({client, asked.client} if asked else {client}, 0)

    def _check_late(self, client: ClientId) -> None:
        """Raise JoinAgain if a client that was passed over must not build its model now."""
        is_building = self._current is not None and not self._current.reply.done()
        passed_over = self.run.state.passed_over
        if is_building or self._late.get(client) == passed_over:
            raise JoinAgain("another client is asked to describe the model now: join again")
        self._late[client] = passed_over

    async def reply(
        self, member: Member, initial_digest: bytes, build: Callable[[Check], Awaitable[Reply]]
    ) -> Reply:
        """Run `build` and return its reply; raise JoinAgain if the model is no longer wanted.

        Cancelling the caller does not cancel the build: after a lost connection, the client calls
        again and waits for the same build.
        """
        key = (member.client, member.manifest_digest, initial_digest)
        while (current := self._current) and not current.reply.done():
            if current.key == key:
                return await asyncio.shield(current.reply)
            self.check_asked(member)
            if not self.is_asked(member.client):
                break
            current.abandoned.set()
            await asyncio.wait({current.reply})
        self.check_asked(member)
        if not self.is_asked(member.client):
            self._check_late(member.client)
        abandoned = threading.Event()

        def check() -> None:
            if abandoned.is_set():
                raise JoinAgain(
                    "another description of the model has replaced this one: join again"
                )
            self.check_asked(member)

        async def built() -> Reply:
            try:
                return await build(check)
            finally:
                abandoned.set()  # so that the thread ends if the coordinator stops

        self._current = _Build(key, abandoned, asyncio.ensure_future(built()))
        self._current.reply.add_done_callback(_retrieve)
        return await asyncio.shield(self._current.reply)


def _retrieve(reply: asyncio.Future[Reply]) -> None:
    """Retrieve the exception; otherwise asyncio would log it if no caller waits for it."""
    if not reply.cancelled():
        reply.exception()


class InitialUpload:
    """One client's description of the model, with its weights if they must be sent."""

    phase = "initial"  # the ledger phase of its bytes
    step = 0

    def __init__(
        self,
        descriptions: ModelDescriptions,
        member: Member,
        manifest: Manifest,
        header: pb.InitialModel,
    ) -> None:
        self.client = member.client
        self._member = member
        self.payload = header.initial
        word = encoding_word(header.initial.encoding)
        self.sections = ((self.phase, word, header.initial.num_bytes),)
        self.follows_from_seed = manifest.rebuildable  # if True, no payload is sent
        self._descriptions = descriptions
        self._manifest = manifest
        self._header = header
        # The time that it may take; `num_bytes` of the header are checked later, against the size.
        sent_s = values_only.encoded_bytes(manifest.size) / MIN_SENT_PER_S
        built_s = manifest.size / MIN_BUILT_PER_S
        self.allowed_s = built_s if manifest.rebuildable else sent_s

    @classmethod
    def admit(
        cls, descriptions: ModelDescriptions, member: Member, header: pb.InitialModel
    ) -> "InitialUpload | transfer_pb2.Receipt":
        """Check a header against the run; return the upload, or a receipt if it is not needed."""
        if receipt := descriptions.receipt_if_known():
            return receipt
        descriptions.check_asked(member)
        manifest = Manifest.from_json(header.manifest)
        descriptions.limits.check_model(manifest)
        if manifest.digest.hex() != member.manifest_digest:
            raise InvalidRequest("the manifest is not the one whose digest came in Join")
        return cls(descriptions, member, manifest, header)

    def check_payload(self) -> None:
        """Raise InvalidRequest unless the announced payload fits the model.

        If it does, delete the partial uploads of clients that were asked earlier.
        """
        num_bytes = values_only.encoded_bytes(self._manifest.size)
        check_payload(self.payload, {transfer_pb2.ENCODING_DENSE: (num_bytes, num_bytes)})
        self._descriptions.drop_other_parts(self.client)

    def receipt_if_unwanted(self) -> transfer_pb2.Receipt | None:
        return self._descriptions.receipt_if_known()

    def received(self, num_bytes: int, seconds: float) -> None:
        """Do nothing: the history has no entry for an initial model."""

    def verify(self, part: PartialUpload) -> VerifiedUpload:
        check = ValueCheck(self.client, self._manifest, Mask.full(self._manifest.num_masked))
        return verify_plain(part, self.payload.digest, self._manifest.size, check)

    async def commit(self, part: PartialUpload, verified: VerifiedUpload) -> transfer_pb2.Receipt:
        """Store the model that was sent, and post it to the run."""
        receipt = await self.commit_model(verified)
        part.drop()
        return receipt

    async def commit_model(self, verified: VerifiedUpload | None = None) -> transfer_pb2.Receipt:
        """Store the model and post it to the run.

        The weights are those of the upload or, without one, built from the run's seed.
        """
        if receipt := self.receipt_if_unwanted():
            return receipt

        async def build(check: Check) -> Reply:
            model = await asyncio.to_thread(self._build, verified, check)
            check()
            return await self._descriptions.run.post(initialized(self.client, model), model)

        digest = self._header.initial_digest
        reply = await self._descriptions.reply(self._member, digest, build)
        failpoint("ack.initial")
        if reply is Reply.CONFLICT:  # another client described another model first
            raise JoinAgain("the run's model is known now: join again to compare it with yours")
        return receipt_of(reply)

    def _build(self, verified: VerifiedUpload | None, check: Check) -> ModelState:
        """Store and return the run's model before its first step, unless `check` raises."""
        settings, store = self._descriptions.run.state.settings, self._descriptions.store
        if verified:
            initial = verified.values.read(0, self._manifest.size)
        else:
            initial = initial_vector(self._manifest, settings.seed, check)
        if values_digest(initial) != self._header.initial_digest:
            raise ManifestMismatch(
                "the initial weights do not have the digest that the client sent: if it made them "
                "from the seed, it must send them instead (OWN_WEIGHTS = True in its task)"
            )
        check()
        model = begin_model(settings, self._manifest, initial)
        store.save_initial(self._manifest, initial)
        return store.lean(model)
