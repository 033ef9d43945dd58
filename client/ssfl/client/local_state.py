"""What a client keeps across a restart: its token, and a finished upload not yet acknowledged.

token        16 random bytes; proves that a new process is the same client
answer.json  step, kind and run of the finished upload, and the digest of its bytes
answer.bin   its header message and payload
"""

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from ssfl.program.files import remove_leftovers, write_atomic

TOKEN_BYTES = 16


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
        return token

    def save(self, answer: Answer) -> None:
        """Keep a finished answer until it is acknowledged."""
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

    def drop(self) -> None:
        """Forget the answer: it was acknowledged, or is of no use any more."""
        for name in ("answer.json", "answer.bin"):
            (self.folder / name).unlink(missing_ok=True)


def _digest(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
