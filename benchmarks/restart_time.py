"""How long does a coordinator take from its start to its first answer, after a long run?

    python -m benchmarks.restart_time

State directories of long runs are made with the pure core (long_journals.py), with the manifest
and the initial weights of ResNet-18. A real `ssfl-coordinator` starts on each, is killed once it
answers, and starts again: with the snapshot that a running coordinator keeps, and without, as
after an update of the program. Writes benchmarks/results/restart_time.json; exit code 1 if Join
takes longer than the bar with a snapshot.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from benchmarks import environment
from benchmarks.async_client import MUST_READ
from benchmarks.coordinator_process import coordinator
from benchmarks.long_journals import long_journal
from benchmarks.server_memory import resnet18
from benchmarks.workload import digest

from ssfl.method.initialize import initial_vector
from ssfl.method.settings import RunSettings
from ssfl.server.recovery.snapshot import write_snapshot
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc

BAR_S = 2.0
RUNS = ((2000, 20), (500, 100))  # rounds and clients


def answered(folder: Path, clients: int, rounds: int, manifest_digest: bytes) -> dict[str, float]:
    """Start a coordinator; return seconds and its CPU seconds until Join is answered."""
    flags = ["--clients", str(clients), "--rounds", str(rounds + 1), "--log-level", "error"]
    began_s = time.monotonic()
    with coordinator(folder, *flags) as server:
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            request = pb.JoinRequest(
                protocol_version=1,
                client_id="client_0000",
                token=bytes(16),
                num_samples=500,
                manifest_digest=manifest_digest,
                encodings=MUST_READ,
            )
            stub.Join(request, timeout=60)
        found = {"seconds": time.monotonic() - began_s, "cpu_s": server.cpu_s()}
        server.process.kill()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    args = parser.parse_args()
    manifest = resnet18()
    initial = initial_vector(manifest, seed=0)
    results: list[dict[str, Any]] = []
    for rounds, clients in RUNS:
        with tempfile.TemporaryDirectory(prefix="ssfl-restart-") as name:
            folder, settings = Path(name), RunSettings(clients=clients, rounds=rounds + 1)
            state = folder / "state"
            long_journal(state, settings, rounds, manifest.digest.hex(), digest(initial).hex())
            Store(state, settings.seed).save_initial(manifest, initial)
            journal = state / "journal"
            size = journal.stat().st_size
            for is_kept in (False, True):
                if is_kept:
                    write_snapshot(StateDirectory(state), settings, journal.stat().st_size)
                found = answered(folder, clients, rounds, manifest.digest)
                results.append(
                    {
                        "rounds": rounds,
                        "clients": clients,
                        "journal_bytes": size,
                        "bytes_per_client_and_round": size / rounds / clients,
                        "snapshot": is_kept,
                        **found,
                    }
                )
    environment.write(args.out / "restart_time.json", {"bar_s": BAR_S, "starts": results})
    for row in results:
        print(
            f"{row['rounds']:>5} rounds x {row['clients']:>3} clients, "
            f"{row['journal_bytes'] / 1e6:.1f} MB of journal, "
            f"{'with' if row['snapshot'] else 'no'} snapshot: "
            f"Join after {row['seconds']:.2f} s ({row['cpu_s']:.2f} s CPU)"
        )
    return 0 if all(row["seconds"] <= BAR_S for row in results if row["snapshot"]) else 1


if __name__ == "__main__":
    sys.exit(main())
