# The two images of ssfl. `make images` builds both; k8s/README.md says how to run them.
#
#   docker build --target coordinator --tag ssfl-coordinator .
#   docker build --target client --tag ssfl-client .
#
# Versions come from constraints.txt. No root, nothing writable but /var/lib/ssfl and /tmp.

# Any image with python3 (3.11 or newer) and its venv module.
ARG BASE=python:3.11-slim-bookworm

# -- a pip that stays out of the images, and an environment for them
FROM ${BASE} AS tools
# For a mirror, or for a folder of wheels where there is no network.
ARG PIP_INDEX_URL=""
ARG PIP_FIND_LINKS=""
ARG PIP_NO_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_INDEX_URL=${PIP_INDEX_URL} PIP_FIND_LINKS=${PIP_FIND_LINKS} PIP_NO_INDEX=${PIP_NO_INDEX}
WORKDIR /build
COPY constraints.txt ./
RUN python3 -m venv /pip \
    && /pip/bin/pip install --constraint constraints.txt hatchling \
    && python3 -m venv --without-pip /opt/ssfl

# -- the wheel of this checkout
FROM tools AS wheel
COPY . ./
RUN /pip/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /wheels .

FROM tools AS coordinator-packages
COPY --from=wheel /wheels /wheels
RUN /pip/bin/pip --python /opt/ssfl/bin/python install --constraint constraints.txt /wheels/*.whl

FROM tools AS client-packages
# torch alone decides between CPU and GPU: its packages come from here, all others from PyPI. For a
# GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130. Empty: from PyPI, too.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /pip/bin/pip --python /opt/ssfl/bin/python install --no-deps \
        ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "$(grep '^torch==' constraints.txt)"
# `data` reads tables and images and has sample data; `client` alone trains on finished shards.
ARG CLIENT_EXTRAS=client,data
COPY --from=wheel /wheels /wheels
RUN /pip/bin/pip --python /opt/ssfl/bin/python install --constraint constraints.txt \
        "$(echo /wheels/*.whl)[${CLIENT_EXTRAS}]"

# -- what both images share
FROM ${BASE} AS plain
RUN install --directory --owner=10001 --group=10001 /var/lib/ssfl /data
ENV PATH=/opt/ssfl/bin:${PATH} HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    SSFL_LOG_FORMAT=json SSFL_OUT_DIR=/var/lib/ssfl/runs
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
WORKDIR /var/lib/ssfl
USER 10001:10001
VOLUME ["/var/lib/ssfl", "/tmp"]
STOPSIGNAL SIGTERM

FROM plain AS coordinator
LABEL org.opencontainers.image.title="ssfl-coordinator" \
      org.opencontainers.image.description="Coordinates a sparse federation; no torch inside."
COPY --from=coordinator-packages /opt/ssfl /opt/ssfl
ENV SSFL_HOST=0.0.0.0 SSFL_HEALTH_PORT=50053 SSFL_STATE_DIR=/var/lib/ssfl/coordinator
EXPOSE 50051
# Unhealthy only after the 5 minutes that reading a large state may take.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "from http.client import HTTPConnection as H; c = H('127.0.0.1', 50053, timeout=4); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["ssfl-coordinator"]

FROM plain AS client
LABEL org.opencontainers.image.title="ssfl-client" \
      org.opencontainers.image.description="Takes part in a sparse federation with one shard of data."
COPY --from=client-packages /opt/ssfl /opt/ssfl
ENV SSFL_DATA_ROOT=/data SSFL_METRICS_PORT=9465 SSFL_STATE_DIR=/var/lib/ssfl/clients
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "from http.client import HTTPConnection as H; c = H('127.0.0.1', 9465, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["ssfl-client"]
