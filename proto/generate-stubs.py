"""Generates the committed Python stubs: `python proto/generate-stubs.py`.

`--out DIR` writes them to another folder; tests/test_layout.py compares both.
"""

import argparse
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    out = parser.parse_args().out
    protos = sorted(str(path.relative_to(HERE)) for path in HERE.glob("ssfl/v1/*.proto"))
    targets = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    code: int = protoc.main(["protoc", f"--proto_path={HERE}", *targets, *protos])
    for path in out.glob("ssfl/v1/*_pb2_grpc.py"):
        if "Servicer" not in path.read_text():
            path.unlink()  # the proto has no service
    return code


if __name__ == "__main__":
    sys.exit(main())
