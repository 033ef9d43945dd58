"""What a client keeps across a restart: its token, and a finished upload not yet acknowledged.

token          16 random bytes; proves that a new process is the same client
answer.json    step, kind and run of the finished upload, and the digest of its bytes
answer.bin     its header message and payload
residual       lossy runs: what accepted updates lost, up to and with the round it names
residual.old   the same, before that round: should the round be void, its update never counted
residual.next  the same, should the finished upload be accepted
"""

import hashlib
import json
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.durable.files import remove_leftovers, write_atomic

TOKEN_BYTES = 16
_DIGEST_BYTES = 32
_ROUND = struct.Struct("<Q")


@dataclass(frozen=True)
class Answer:
    """A finished piece of work that has to reach the coordinator."""

    run_id: str
    kind: str  # "scores" or "values"
    step: int
    header: bytes  # serialized SaliencyReport or SparseUpdate
    payload: memoryview


class LocalState:
    """A client's state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)

    def token(self) -> bytes:
        """Return the client's token, made at its first start."""
        path = self.folder / "token"
        if path.exists() and len(token := path.read_bytes()) == TOKEN_BYTES:
            return token
        token = secrets.token_bytes(TOKEN_BYTES)
        write_atomic(path, token)
        path.chmod(0o600)  # who has it can join as this client
        return token

    def save(
        self,
        answer: Answer,
        mask_digest: bytes = b"",
        round_number: int = 0,
        residual: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Keep a finished answer until it is acknowledged, and what it lost in coding."""
        if residual is None:
            (self.folder / "residual.next").unlink(missing_ok=True)
        else:
            data = _ROUND.pack(round_number) + residual.astype("<f4").tobytes()
            tag = _tag(answer.run_id, mask_digest, data)
            write_atomic(self.folder / "residual.next", [tag, memoryview(data)])
        write_atomic(self.folder / "answer.bin", [answer.header, answer.payload])
        facts = {
            "run_id": answer.run_id,
            "kind": answer.kind,
            "step": answer.step,
            "header_bytes": len(answer.header),
            "digest": _digest(answer.header, answer.payload),
        }
        write_atomic(self.folder / "answer.json", json.dumps(facts).encode())

    def load(self) -> Answer | None:
        """Return the answer an earlier process left; None if there is none, or it is damaged."""
        try:
            facts = json.loads((self.folder / "answer.json").read_bytes())
            data = memoryview((self.folder / "answer.bin").read_bytes())
            if facts["digest"] != _digest(data):
                return None
            split = int(facts["header_bytes"])
            return Answer(
                str(facts["run_id"]), str(facts["kind"]), int(facts["step"]),
                bytes(data[:split]), data[split:],
            )  # fmt: skip
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def accepted(self) -> None:
        """The answer counts: what it lost is what the next one is to make good."""
        following, current = self.folder / "residual.next", self.folder / "residual"
        if not following.exists():
            return
        if current.exists() and _round_of(current) != _round_of(following):
            current.replace(self.folder / "residual.old")
        following.replace(current)

    def residual(
        self, run_id: str, mask_digest: bytes, round_number: int
    ) -> npt.NDArray[np.float32] | None:
        """Return what the updates of this run and mask have lost before this round; None: nothing.

        If this very round was tried before, that update was accepted but never counted.
        """
        for name in ("residual", "residual.old"):
            try:
                data = (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None
            tag, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if len(rest) < _ROUND.size or tag != _tag(run_id, mask_digest, rest):
                return None
            if _ROUND.unpack_from(rest)[0] != round_number:
                values = np.frombuffer(rest, dtype="<f4", offset=_ROUND.size)
                return values.astype(np.float32, copy=False)
        return None

    def drop(self) -> None:
        """Forget the answer: it was acknowledged, or is of no use any more."""
        for name in ("answer.json", "answer.bin", "residual.next"):
            (self.folder / name).unlink(missing_ok=True)


def _round_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(_DIGEST_BYTES)
        return file.read(_ROUND.size)


def _tag(run_id: str, mask_digest: bytes, data: bytes) -> bytes:
    return hashlib.sha256(run_id.encode() + b"\0" + mask_digest + data).digest()


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
