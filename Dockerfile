# Broker and sink in one image, side by side in /app/bin: the broker takes its embedded sink from beside itself.
#
#   docker build -t queen-mq .
#   docker run … queen-mq                    the broker, with or without an embedded sink
#   docker run … queen-mq ./bin/queen-s3     the sink alone
#
# How to run it is in deploy/README.md.

# `rust-version` of the manifests.
ARG RUST_VERSION=1.95
# Built and run on one Debian: a binary needs a glibc no older than the one that it was linked with.
ARG DEBIAN=bookworm

FROM rust:${RUST_VERSION}-slim-${DEBIAN} AS rust
WORKDIR /src

FROM rust AS broker
COPY Cargo.toml Cargo.lock ./
# Cargo reads the manifests of all members, whichever of them it builds.
COPY bench bench
COPY dev dev
COPY tests tests
COPY server server
# What is kept from one build to the next is the downloads, one store for each stage since they are built at once. A kept `target` could
# hand an older binary out: cargo goes by the times of files, which a checkout of an earlier commit sets as it likes.
RUN --mount=type=cache,id=queen-crates,target=/usr/local/cargo/registry \
    cargo install --locked --path server --root /out

FROM rust AS sink
COPY connectors/queen-s3 connectors/queen-s3
RUN --mount=type=cache,id=queen-s3-crates,target=/usr/local/cargo/registry \
    cargo install --locked --path connectors/queen-s3 --root /out

FROM debian:${DEBIAN}-slim
LABEL org.opencontainers.image.title="queen-mq" \
      org.opencontainers.image.description="The Queen broker, and the sink that mirrors its log into an object store" \
      org.opencontainers.image.version="1.5.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://queenmq.com"

# The authorities that the sink verifies `https` against. Nothing else is needed: neither program calls another one.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log \
 && groupadd --gid 10001 queen \
 && useradd --uid 10001 --gid queen --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin queen

WORKDIR /app
COPY LICENSE ./
COPY --from=broker /out/bin/queen bin/
COPY --from=sink /out/bin/queen-s3 bin/

# Loopback, the broker's default, is the container's own and reached by nobody. What is published of its port, and to whom, is settled
# where the container is started. With the network of the host, set it back to 127.0.0.1. The sink works without being reached, and stays
# on loopback: QUEEN_S3_LISTEN=0.0.0.0:9333 to scrape it.
ENV QUEEN_LISTEN_HOST=0.0.0.0
EXPOSE 6632 9333

# By number, so that `runAsNonRoot` of Kubernetes can tell.
USER 10001:10001
STOPSIGNAL SIGTERM
# No ENTRYPOINT, since the image holds two programs, and no HEALTHCHECK, since they answer on different ports and paths.
CMD ["./bin/queen"]
