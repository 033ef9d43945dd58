#!/bin/bash
# Builds both images without Docker and without a registry, and runs a federation in containers:
# no root, read-only, shards on a volume. Its model must have the digest of the same federation
# outside. Needs root, and apt-get install buildah podman runc debootstrap; takes some minutes.
#
#   k8s/try-images.sh            everything
#   BASE=image k8s/try-images.sh with an existing base image
#
# Programs outside come from BIN (.venv/bin). Downloads are cached in .parts/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BIN=$(realpath "${BIN:-.venv/bin}")
PARTS=$PWD/.parts
CLIENTS=4
FOLDER=$(mktemp -d)
RUN=(--clients="$CLIENTS" --rounds=5 --reproducible --seed=7)
# Options of podman for a machine without systemd and network plug-ins.
PODMAN=(podman --cgroup-manager=cgroupfs --runtime=runc)
BOUNDS=(--ulimit=nofile=1024:1024 --ulimit=nproc=1024:1024
  --read-only --cap-drop=ALL --security-opt=no-new-privileges)
CONTAINED=("${BOUNDS[@]}" --network=host --no-healthcheck)
# Only its own loopback, so that every port is free; health checks run on request.
ALONE=("${BOUNDS[@]}" --network=none --health-interval=disable)

fail() { echo "$*" >&2; exit 1; }

end() {
  local name
  for name in health coordinator $(seq -f 'client-%g' 0 $((CLIENTS - 1))); do
    "${PODMAN[@]}" rm --force --time=0 "ssfl-try-$name" >/dev/null 2>&1 || true
  done
  rm -rf "$FOLDER"
}
trap end EXIT

free_port() { "$BIN/python" -c 'import socket as s; o = s.socket(); o.bind(("", 0)); print(o.getsockname()[1])'; }

# -- a base image from Debian's packages

make_base() {
  [[ -z ${BASE:-} ]] || return 0
  BASE=localhost/ssfl-debian:bookworm
  if ! buildah inspect --type image "$BASE" >/dev/null 2>&1; then
    echo "making a base image with debootstrap ..."
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm \
      "$FOLDER/base" >"$FOLDER/debootstrap.log" || fail "debootstrap: $(tail "$FOLDER/debootstrap.log")"
    rm -rf "$FOLDER"/base/var/cache/apt/archives/*.deb "$FOLDER"/base/var/lib/apt/lists/*
    tar -C "$FOLDER/base" -c . | "${PODMAN[@]}" import --quiet - "$BASE" >/dev/null
    rm -rf "$FOLDER/base"
  fi
}

# -- both images, from wheels that this machine's pip fetched

build_images() {
  local target started torch
  torch=$(grep '^torch==' constraints.txt)
  echo "fetching the packages ..."
  "$BIN/python" -m pip download -qq --dest "$PARTS/wheels" --constraint constraints.txt "$torch" hatchling
  "$BIN/python" -m pip download -qq --dest "$PARTS/wheels" --find-links "$PARTS/wheels" \
    --constraint constraints.txt ".[client,data]"
  rm -f "$PARTS"/wheels/ssfl-*
  for target in coordinator client; do
    started=$SECONDS
    buildah bud --quiet --isolation=chroot --format=docker --layers --target="$target" \
      --build-arg=BASE="$BASE" --build-arg=TORCH_INDEX= --build-arg=PIP_NO_INDEX=1 \
      --build-arg=PIP_FIND_LINKS=/wheelhouse --volume="$PARTS/wheels:/wheelhouse:ro" \
      --tag="localhost/ssfl-$target:try" . >"$FOLDER/build.log" 2>&1 || fail "$(tail -20 "$FOLDER/build.log")"
    printf '%-12s built in %d s\n' "$target" $((SECONDS - started))
  done
}

show_sizes() {
  local target
  for target in coordinator client; do
    printf '%-12s %s\n' "$target" "$("${PODMAN[@]}" run --rm "${CONTAINED[@]}" --entrypoint=sh \
      "localhost/ssfl-$target:try" -c 'du -sm /opt/ssfl | cut -f1') MB of packages, \
$(buildah images --format '{{.Size}}' "localhost/ssfl-$target:try") with the base"
  done
  if "${PODMAN[@]}" run --rm "${CONTAINED[@]}" --entrypoint=python localhost/ssfl-coordinator:try \
    -c 'import torch' 2>/dev/null; then fail "the coordinator's image has torch"; fi
}

# -- a federation inside, the same outside

volume() { install --directory --owner=10001 --group=10001 "$FOLDER/$1"; }

# start_coordinator PORT [flags]: in a container, until it is ready
start_coordinator() {
  local port=$1 health
  shift
  health=$(free_port)
  "${PODMAN[@]}" run --detach --replace --name=ssfl-try-coordinator "${CONTAINED[@]}" \
    --env=SSFL_HOST=127.0.0.1 --volume="$FOLDER/coordinator:/var/lib/ssfl" \
    localhost/ssfl-coordinator:try "${RUN[@]}" --port="$port" --admin-port=0 --health-port="$health" \
    "$@" >/dev/null
  until curl --silent --fail --noproxy '*' "http://127.0.0.1:$health/readyz" >/dev/null; do
    [[ $("${PODMAN[@]}" inspect --format '{{.State.Running}}' ssfl-try-coordinator) == true ]] \
      || fail "$("${PODMAN[@]}" logs --tail=20 ssfl-try-coordinator 2>&1)"
    sleep 0.2
  done
}

inside() {
  local port name index code
  port=$(free_port)
  for name in data coordinator $(seq -f 'client-%g' 0 $((CLIENTS - 1))); do volume "$name"; done
  "${PODMAN[@]}" run --rm "${CONTAINED[@]}" --volume="$FOLDER/data:/data" --entrypoint=ssfl \
    localhost/ssfl-client:try shards --clients="$CLIENTS" --out=/data >/dev/null
  start_coordinator "$port" --exit-when-done
  for (( index = 0; index < CLIENTS; index++ )); do
    "${PODMAN[@]}" run --detach --name="ssfl-try-client-$index" "${CONTAINED[@]}" \
      --env=SSFL_METRICS_PORT=0 --volume="$FOLDER/data:/data:ro" \
      --volume="$FOLDER/client-$index:/var/lib/ssfl" localhost/ssfl-client:try \
      --data="shard_$index" --coordinator="localhost:$port" >/dev/null
  done
  for name in $(seq -f 'client-%g' 0 $((CLIENTS - 1))) coordinator; do
    code=$("${PODMAN[@]}" wait "ssfl-try-$name")
    [[ $code == 0 ]] || fail "$name ended with $code: $("${PODMAN[@]}" logs --tail=20 "ssfl-try-$name" 2>&1)"
  done
}

# SIGTERM reaches the program, which ends by itself: exit code 143, not 137 as after a kill.
stops() {
  local code
  start_coordinator 0
  "${PODMAN[@]}" stop --time=30 ssfl-try-coordinator >/dev/null
  code=$("${PODMAN[@]}" inspect --format '{{.State.ExitCode}}' ssfl-try-coordinator)
  [[ $code == 143 ]] || fail "the coordinator ended with $code after SIGTERM"
}

# health_check TARGET [flags]: the image's HEALTHCHECK passes, and fails if the program hangs.
health_check() {
  local target=$1 name=ssfl-try-health
  shift
  "${PODMAN[@]}" run --detach --replace --name="$name" "${ALONE[@]}" --volume="$FOLDER/data:/data:ro" \
    "localhost/ssfl-$target:try" "$@" >/dev/null 2>"$FOLDER/health.log" || fail "$(cat "$FOLDER/health.log")"
  until "${PODMAN[@]}" healthcheck run "$name" >/dev/null; do
    [[ $("${PODMAN[@]}" inspect --format '{{.State.Running}}' "$name") == true ]] \
      || fail "$("${PODMAN[@]}" logs --tail=20 "$name" 2>&1)"
    sleep 0.5
  done
  "${PODMAN[@]}" kill --signal=STOP "$name" >/dev/null
  if "${PODMAN[@]}" healthcheck run "$name" >/dev/null; then fail "the health check of a hanging $target passes"; fi
  "${PODMAN[@]}" rm --force --time=0 "$name" >/dev/null 2>&1
  printf '%-12s health check: passes, and fails when it hangs\n' "$target"
}

outside() {
  local port index clients=()
  port=$(free_port)
  mkdir "$FOLDER/outside"
  (cd "$FOLDER/outside" && exec "$BIN/ssfl-coordinator" "${RUN[@]}" --port="$port" --admin-port=0 --exit-when-done) \
    >"$FOLDER/outside.log" 2>&1 &
  clients+=($!)
  for (( index = 0; index < CLIENTS; index++ )); do
    (cd "$FOLDER/outside" && exec "$BIN/ssfl-client" --data="shard_$index" --data-root="$FOLDER/data" \
      --coordinator="localhost:$port") >"$FOLDER/outside-$index.log" 2>&1 &
    clients+=($!)
  done
  for index in "${clients[@]}"; do wait "$index" || fail "$(tail -5 "$FOLDER"/outside*.log)"; done
}

digest() {
  "$BIN/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["model_digest"])' \
    "$1"/runs/*/coordinator/history.json
}

[[ $(id -u) == 0 ]] || fail "needs root, for buildah and podman"
for command in buildah podman runc debootstrap curl; do
  command -v "$command" >/dev/null || fail "needs $command: apt-get install buildah podman runc debootstrap curl"
done
make_base
build_images
show_sizes
inside
stops
health_check coordinator --insecure
health_check client --data=shard_0
outside
echo "inside   $(digest "$FOLDER/coordinator")"
echo "outside  $(digest "$FOLDER/outside")"
[[ $(digest "$FOLDER/coordinator") == $(digest "$FOLDER/outside") ]] || fail "the models differ"
echo "same model: yes"
