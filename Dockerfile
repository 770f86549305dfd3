# A broker: slim, as a user of its own, and with a read-only root.
#   docker build --tag lakehead .
#   docker run --read-only --tmpfs /tmp --volume lakehead:/var/lib/lakehead --publish 9092:9092 lakehead
# EXTRAS are those of the package, PACKAGES those of Debian: docs/containers.md.
FROM python:3.13-slim AS build
ARG EXTRAS=client,compaction,s3
WORKDIR /source
COPY requirements/build.txt requirements/dev.txt requirements/
RUN grep -oE '^[A-Za-z0-9._-]+==[^ ]+' requirements/dev.txt >/constraints.txt \
    && python -m venv /opt/lakehead
COPY . .
RUN /opt/lakehead/bin/pip install --no-cache-dir --constraint /constraints.txt ".[${EXTRAS}]" \
    && /opt/lakehead/bin/pip uninstall --yes pip

FROM python:3.13-slim
ARG PACKAGES=
# hadolint ignore=DL3008,SC2086
RUN if [ -n "$PACKAGES" ]; then apt-get update \
    && apt-get install --yes --no-install-recommends $PACKAGES \
    && rm -rf /var/lib/apt/lists/*; fi
COPY --from=build /opt/lakehead /opt/lakehead
RUN groupadd --system --gid 10001 lakehead \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/lakehead --create-home lakehead
USER 10001:10001
WORKDIR /var/lib/lakehead
VOLUME /var/lib/lakehead
ENV PATH=/opt/lakehead/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/tmp/kernels
EXPOSE 9092 9090
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9090/ready', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["lakehead"]
CMD ["start", "--host", "0.0.0.0", "--advertised.host", "localhost", "--data", "/var/lib/lakehead", "--metrics.port", "9090", "--metrics.host", "0.0.0.0"]
