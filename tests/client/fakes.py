"""A scripted coordinator and the errors that a real one would send."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import numpy as np

from ssfl.method.manifest import Init, Manifest, Role, TensorSpec

MANIFEST = Manifest(
    (
        TensorSpec("fc.weight", (4, 5), Role.MASKED, Init("ones")),
        TensorSpec("fc.bias", (4,), Role.DENSE, Init("zeros")),
    )
)
INITIAL = np.r_[np.ones(20), np.zeros(4)].astype(np.float32)


class FakeRpcError(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """An error as grpc raises it, with status, details and trailing metadata."""

    def __init__(self, code: grpc.StatusCode, details: str = "", reason: str = "") -> None:
        super().__init__(details)
        self._code, self._details = code, details
        self._metadata = (("ssfl-reason", reason),) if reason else ()

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


class FakeCall:
    """A streaming call: yields its responses, then raises `error` if there is one."""

    def __init__(self, responses: Iterable[Any], error: Exception | None = None) -> None:
        self._responses = iter(responses)
        self._error = error
        self.cancelled = False

    def __iter__(self) -> Iterator[Any]:
        yield from self._responses
        if self._error:
            raise self._error

    def cancel(self) -> None:
        self.cancelled = True


class FakeStub:
    """Answers each RPC with the next entry of its script: a value, an error, or a function."""

    def __init__(self, **scripts: list[Any]) -> None:
        self._scripts = scripts
        self.requests: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def rpc(request: Any, timeout: float | None = None) -> Any:
            del timeout
            self.requests.append((name, request))
            script = self._scripts.get(name, [])
            assert script, f"an unexpected call of {name}"
            response = script.pop(0)
            if callable(response):
                response = response(request)
            if isinstance(response, Exception):
                raise response
            return response

        return rpc

    def called(self, name: str) -> list[Any]:
        """Return the requests of one RPC."""
        return [request for rpc, request in self.requests if rpc == name]
