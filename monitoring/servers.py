"""A real Prometheus process with our configuration, optionally sped up.

Its copy of prometheus.yml and rules.yml differs from the original in three things only: the
targets, the scrape interval, and the `for:` of every alert, which is divided by `hurry`.
Expressions never change. Every wait has a deadline.
"""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from monitoring.build import HERE

START_DEADLINE_S = 60.0
END_DEADLINE_S = 15.0
ASK_TIMEOUT_S = 20.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Loopback needs no proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def seconds_of(duration: str) -> int:
    """Return the seconds of a duration in the format of Prometheus."""
    parts = re.findall(r"(\d+)([smhd])", duration)
    if "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"{duration!r} is not a Prometheus duration, such as 1h30m")
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def hurried_rules(hurry: float) -> dict[str, Any]:
    """Return rules.yml with every `for:` divided."""
    rules: dict[str, Any] = yaml.safe_load((HERE / "rules.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = f"{max(1, round(seconds_of(rule['for']) / hurry))}s"
    return rules


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it has not ended by the deadline."""
    process.terminate()
    try:
        process.wait(END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Server:
    """A process that serves HTTP on its own port."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.port = name, folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def start(self, *command: str) -> None:
        """Start the process and wait until it is ready."""
        with (self.folder / f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C reaches only us; we end it in order
            )  # fmt: skip
        end_s = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                _OPENER.open(f"{self.url}/-/ready", timeout=ASK_TIMEOUT_S).close()
                return
            except OSError:
                time.sleep(0.05)
        log_tail = (self.folder / f"{self.name}.log").read_text("utf-8", "replace")[-2000:]
        raise RuntimeError(f"{self.name} did not start:\n{log_tail}")

    def get(self, path: str, **query: str) -> Any:
        """Return the `data` of an API response."""
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with _OPENER.open(address, timeout=ASK_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            body = error.read().decode("utf-8", "replace")
            raise RuntimeError(f"{self.name} refuses {query or path}: {body}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            end(self._process)


class Prometheus(Server):
    """Prometheus with our scrape configuration and rules."""

    def __init__(self, program: str, folder: Path, *, every_s: int, hurry: float) -> None:
        super().__init__("prometheus", folder)
        config = yaml.safe_load((HERE / "prometheus.yml").read_text("utf-8"))
        config["global"] = {
            "scrape_interval": f"{every_s}s",
            "scrape_timeout": f"{every_s}s",
            "evaluation_interval": f"{every_s}s",
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
        (folder / "rules.yml").write_text(yaml.safe_dump(hurried_rules(hurry)), "utf-8")
        (folder / "targets").mkdir(exist_ok=True)
        self.targets({"alertmanager": []})
        self._program = program

    def targets(self, targets: Mapping[str, Sequence[str]]) -> None:
        """Set the scrape targets by kind (coordinator, client); effective at once."""
        for kind, addresses in targets.items():
            file = self.folder / "targets" / f"{kind}.yml"
            new = file.with_suffix(".new")
            new.write_text(yaml.safe_dump([{"targets": list(addresses)}]), "utf-8")
            new.replace(file)

    def run(self) -> Self:
        """Start the process and wait until it is ready."""
        self.start(
            self._program, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )  # fmt: skip
        return self

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """Return the current result of an expression: labels as `metric`, and `value`."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expr)["result"]
        return found

    def firing(self) -> dict[str, dict[str, Any]]:
        """Return the firing alerts by name."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        return {
            alert["labels"]["alertname"]: alert for alert in alerts if alert["state"] == "firing"
        }
