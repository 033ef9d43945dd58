"""State of a client that survives a restart: its token and its pending upload.

token          16 random bytes; they prove that a new process is the same client
answer.json    step, kind and run of the pending upload, and the digest of its bytes
answer.bin     header message and payload of the pending upload
memory*        what the client keeps between its steps (memory.py)
residual*      the same of earlier versions, for lossy runs: the coding error of the newest
               accepted update and its round; in residual.old, that before the round
ended.json     the run that is over and the folder of its final model; deleted as the last step
               before a normal exit
"""

import hashlib
import json
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.client.memory import ClientMemory
from ssfl.durable.files import remove_leftovers, write_atomic
from ssfl.method.errors import ModelFileError
from ssfl.program.model_io.safetensors_model import MODEL
from ssfl.program.model_io.stored_model import read_stored

TOKEN_BYTES = 16
_DIGEST_BYTES = 32
_ROUND = struct.Struct("<Q")


@dataclass(frozen=True)
class PendingUpload:
    """A finished result that the coordinator has not acknowledged."""

    run_id: str
    kind: str  # "scores" or "values"
    step: int
    header: bytes  # serialized SaliencyReport or SparseUpdate
    payload: memoryview


@dataclass(frozen=True)
class EndedRun:
    """A run that is over for this client."""

    run_id: str
    folder: Path | None  # of the final model; None: the run was stopped before it had one


class LocalState:
    """A client's state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        self.memory = ClientMemory(folder)

    def token(self) -> bytes:
        """Return the client's token; create it if it is missing or damaged."""
        path = self.folder / "token"
        if path.exists() and len(token := path.read_bytes()) == TOKEN_BYTES:
            return token
        token = secrets.token_bytes(TOKEN_BYTES)
        write_atomic(path, token)
        path.chmod(0o600)  # the token permits joining as this client
        return token

    def save(self, upload: PendingUpload) -> None:
        """Store a pending upload."""
        write_atomic(self.folder / "answer.bin", [upload.header, upload.payload])
        fields = {
            "run_id": upload.run_id,
            "kind": upload.kind,
            "step": upload.step,
            "header_bytes": len(upload.header),
            "digest": _digest(upload.header, upload.payload),
        }
        write_atomic(self.folder / "answer.json", json.dumps(fields).encode())

    def load(self) -> PendingUpload | None:
        """Return the pending upload of an earlier process; None if it is missing or damaged."""
        try:
            fields = json.loads((self.folder / "answer.json").read_bytes())
            data = memoryview((self.folder / "answer.bin").read_bytes())
            if fields["digest"] != _digest(data):
                return None
            split = int(fields["header_bytes"])
            return PendingUpload(
                str(fields["run_id"]), str(fields["kind"]), int(fields["step"]),
                bytes(data[:split]), data[split:],
            )  # fmt: skip
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def residual(
        self, run_id: str, mask_digest: bytes, round_number: int
    ) -> npt.NDArray[np.float32] | None:
        """Return the residual that a version before `memory` left; None if it does not fit."""
        # A residual with this round's number is from a void attempt: use the older one.
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
        """Delete the pending upload after it was acknowledged or became stale."""
        for name in ("answer.json", "answer.bin"):
            (self.folder / name).unlink(missing_ok=True)

    def save_ended(self, ended: EndedRun) -> None:
        """Record that a run is over. Its final model, if it has one, must be stored already."""
        folder = str(ended.folder.absolute()) if ended.folder else ""
        fields = {"run_id": ended.run_id, "folder": folder}
        write_atomic(self.folder / "ended.json", json.dumps(fields).encode())

    def ended(self) -> EndedRun | None:
        """Return the run recorded as over; None if there is none or its model is damaged."""
        try:
            fields = json.loads((self.folder / "ended.json").read_bytes())
            run_id, folder = str(fields["run_id"]), str(fields["folder"])
            if folder:
                read_stored(Path(folder) / MODEL)
        except (FileNotFoundError, ValueError, KeyError, TypeError, ModelFileError):
            return None
        return EndedRun(run_id, Path(folder) if folder else None)

    def forget_ended(self) -> None:
        """Remove the record of an ended run."""
        (self.folder / "ended.json").unlink(missing_ok=True)


def _tag(run_id: str, mask_digest: bytes, data: bytes) -> bytes:
    return hashlib.sha256(run_id.encode() + b"\0" + mask_digest + data).digest()


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
