"""`make monitoring`: a federation on this machine, watched by Prometheus, broken on purpose.

A coordinator and four clients train on scikit-learn's digits. Prometheus uses our scrape
configuration and rules, but scrapes every second, with every alert's `for:` divided by HURRY. Once
a dashboard expression shows the first round, two clients are killed and restarted, then the
coordinator; each time the alert fires and clears. Then the federation continues until Ctrl-C.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from monitoring.build import HERE
from monitoring.expressions import filled
from monitoring.panels import dashboard
from monitoring.servers import Prometheus, end, free_port
from rich.console import Console

from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import shard_names
from ssfl.datasets.shards.write import make_shards
from ssfl.program.exits import ExitCode, ProgramError, raise_on_sigterm
from ssfl.tools.local.local_run import fresh_folder, require_modules
from ssfl.tools.local.processes import COORDINATOR, LocalFederation
from ssfl.tools.terminal import console

HURRY = 30.0
CLIENTS = 4
SEEN_DEADLINE_S = 120.0  # until a dashboard shows the first round
ALERT_DEADLINE_S = 180.0
LOOK_S = 20.0  # before the faults begin
PANEL = "Time of a round by phase"
FOLDER = Path("runs/monitoring")


class MonitoringDemo:
    """The federation, its Prometheus and the screen."""

    def __init__(
        self, federation: LocalFederation, prometheus: Prometheus, screen: Console
    ) -> None:
        self.federation = federation
        self.prometheus = prometheus
        self.began_s = time.monotonic()
        self._screen = screen

    def print_line(self, text: str) -> None:
        """Print a line with the time since the start."""
        self._screen.print(f"{time.monotonic() - self.began_s:6.1f} s  {text}", soft_wrap=True)

    def wait(self, condition: Callable[[], object], what: str, deadline_s: float) -> None:
        """Wait for a condition; raise ProgramError at the deadline."""
        end_s = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end_s:
                raise ProgramError(f"{what}: not within {deadline_s:g} s", ExitCode.BUG)
            time.sleep(0.25)

    def wait_until_firing(self, alert: str) -> None:
        """Wait for an alert to fire and show it."""
        self.wait(lambda: alert in self.prometheus.firing(), f"{alert} fires", ALERT_DEADLINE_S)
        notes = self.prometheus.firing()[alert]
        self.print_line(f"FIRES   {alert} ({notes['labels']['severity']})")
        self.print_line(f"        {notes['annotations']['description']}")
        self.print_line(f"        {notes['annotations']['runbook_url']}")

    def wait_until_cleared(self, alert: str) -> None:
        """Wait for an alert to clear."""
        self.wait(
            lambda: alert not in self.prometheus.firing(), f"{alert} clears", ALERT_DEADLINE_S
        )
        self.print_line(f"CLEARS  {alert}")


def main() -> int:
    """Run the federation; Ctrl-C ends everything."""
    parser = argparse.ArgumentParser(prog="python -m monitoring.live", description=__doc__)
    parser.add_argument(
        "--end-after",
        choices=("round", "alerts"),
        help="end after the first round, or after all alerts have cleared, instead of at Ctrl-C",
    )
    end_after = parser.parse_args().end_after
    raise_on_sigterm()
    screen = console()
    try:
        require_modules("torch", "sklearn", extra="demo")
        program = _program("prometheus")
        _start(program, screen, end_after)
    except KeyboardInterrupt:
        screen.print("ended: coordinator, clients and Prometheus are stopped")
    except ProgramError as error:
        print(f"make monitoring: error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.DONE)


def _start(program: str, screen: Console, end_after: str | None) -> None:
    fresh_folder(FOLDER)
    make_shards(FOLDER / "shards", digits(), Cut(clients=CLIENTS, validation=0.0))
    metrics = free_port()
    flags = [
        "--clients", str(CLIENTS), "--min-clients", str(CLIENTS), "--rounds", "2000",
        "--sparsity", "0.9", "--learning-rate", "0.2", "--local-steps", "20",
        "--metrics-port", str(metrics), "--reference-coding", "on",
    ]  # fmt: skip
    shards = FOLDER / "shards"
    client_flags = ("--metrics-port", "0", "--threads", "1")
    folder = FOLDER.resolve()
    federation = LocalFederation(folder, shards, flags, shard_names(shards), client_flags)
    with Prometheus(program, folder / "prometheus", every_s=1, hurry=HURRY) as prometheus:
        demo = MonitoringDemo(federation, prometheus, screen)
        with federation:
            prometheus.targets({"coordinator": [f"localhost:{metrics}"], "client": []})
            prometheus.run()
            with _grafana(demo):
                _run_demo(demo, end_after)


def _run_demo(demo: MonitoringDemo, end_after: str | None) -> None:
    """Show the first round, then the two faults."""
    prometheus, federation = demo.prometheus, demo.federation
    _print_addresses(demo)
    _scrape_clients(demo)
    expr = _expression(PANEL)
    demo.wait(lambda: _has_data(prometheus, expr), "the first round is shown", SEEN_DEADLINE_S)
    demo.print_line(f"the panel {PANEL!r} shows the first round: {expr}")
    for row in prometheus.ask(expr):
        demo.print_line(
            f"        {row['metric'].get('phase', ''):12} {float(row['value'][1]):8.4f} s"
        )
    if end_after == "round":
        return
    if end_after is None:
        demo.print_line(f"two clients will be killed in {LOOK_S:g} s")
        time.sleep(LOOK_S)

    lost = federation.clients[-2:]
    demo.print_line(f"BROKEN  {' and '.join(lost)} are killed; after 30 s of silence they are lost")
    for client in lost:
        federation.kill(client)
    demo.wait_until_firing("SsflClientsLost")
    demo.wait_until_firing("SsflRunStalled")
    for client in lost:
        federation.restart(client)
    _scrape_clients(demo)
    demo.print_line(f"FIXED   {' and '.join(lost)} are restarted")
    for alert in ("SsflRunStalled", "SsflClientsLost"):
        demo.wait_until_cleared(alert)

    demo.print_line("BROKEN  the coordinator is killed")
    federation.kill(COORDINATOR)
    demo.wait_until_firing("SsflCoordinatorDown")
    federation.restart(COORDINATOR)
    demo.print_line("FIXED   the coordinator is restarted with the same state directory")
    demo.wait_until_cleared("SsflCoordinatorDown")
    rounds = prometheus.ask("ssfl_rounds_total")[0]["value"][1]
    demo.wait(
        lambda: prometheus.ask(f"ssfl_rounds_total > {rounds}"),
        "the run continues",
        ALERT_DEADLINE_S,
    )
    demo.print_line("the run has resumed")
    if end_after is None:
        demo.print_line("and continues for inspection; Ctrl-C ends everything")
        while COORDINATOR not in federation.ended():
            time.sleep(0.5)


def _print_addresses(demo: MonitoringDemo) -> None:
    prometheus = demo.prometheus
    for line in (
        f"1 coordinator and {CLIENTS} clients train on digits; logs are in {FOLDER}",
        f"Prometheus   {prometheus.url}/graph   try: ssfl_rounds_total, ssfl_client_pending",
        f"alerts       {prometheus.url}/alerts  (our rules; every `for:` divided by {HURRY:g})",
        f"targets      {prometheus.url}/targets",
    ):
        demo.print_line(line)


def _expression(title: str) -> str:
    """Return the expression of a panel of *Round latency*, with its variables filled in."""
    panels = dashboard(HERE / "dashboards" / "round-latency.yaml")["panels"]
    (panel,) = [panel for panel in panels if panel["title"] == title]
    return filled(panel["targets"][0]["expr"])


def _has_data(prometheus: Prometheus, expr: str) -> bool:
    return any(row["value"][1] != "NaN" for row in prometheus.ask(expr))


def _scrape_clients(demo: MonitoringDemo) -> None:
    """Add the metrics ports that the clients printed to the targets of Prometheus."""
    federation = demo.federation
    addresses: list[str] = []

    def all_printed() -> bool:
        federation.ended()
        texts = [(federation.folder / f"{name}.out").read_text() for name in federation.clients]
        found = [text.rpartition(" metrics on ")[2].strip() for text in texts]
        addresses[:] = [f"localhost:{line.rpartition(':')[2]}" for line in found if line]
        return len(addresses) == len(texts)

    demo.wait(all_printed, "the clients print their metrics ports", SEEN_DEADLINE_S)
    demo.prometheus.targets({"client": addresses})


def _program(name: str) -> str:
    """Return the path of a Debian package's program; install it if possible."""
    found = shutil.which(name)
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {name} ...", flush=True)
        for command in (["update"], ["install", "-y", "--no-install-recommends", name]):
            subprocess.run(["apt-get", "-qq", *command], check=False, stdout=subprocess.DEVNULL)
        found = shutil.which(name)
    if not found:
        raise ProgramError(
            f"{name} is not installed: apt install {name}, or put its program on the PATH",
            ExitCode.USAGE,
        )
    return found


@contextmanager
def _grafana(demo: MonitoringDemo) -> Iterator[None]:
    """Start Grafana with our dashboards if it is installed; otherwise print how to get it."""
    program, home = shutil.which("grafana-server"), Path("/usr/share/grafana")
    if not program or not home.is_dir():
        demo.print_line(
            "grafana-server is not installed: the dashboards are in monitoring/dashboards (import "
            "them, or run `docker compose up`)"
        )
        yield
        return
    port, folder = free_port(), FOLDER.resolve() / "grafana"
    folder.mkdir()
    environment = os.environ | {
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_PATHS_DATA": str(folder),
        "GF_PATHS_LOGS": str(folder),
        "GF_PATHS_PROVISIONING": str(HERE / "grafana" / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "PROMETHEUS_URL": demo.prometheus.url,
        "SSFL_DASHBOARDS": str(HERE / "dashboards"),
    }
    process = subprocess.Popen(
        [program, "--homepath", str(home)], env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    demo.print_line(f"Grafana      http://localhost:{port}/d/ssfl-round-latency")
    try:
        yield
    finally:
        end(process)


if __name__ == "__main__":
    sys.exit(main())
