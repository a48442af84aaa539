# The image of ordgate: one static binary, the public certificate authorities, an empty state
# directory, and nothing else.
#
#   docker build --tag ordgate .
#   docker run --rm --publish 127.0.0.1:8080:8080 ordgate serve --sandbox
#
# With a provider. The file of the keys belongs to the user of the image, who alone may read
# it (chown 65532 api-keys; chmod 400 api-keys):
#
#   docker run --read-only --publish 127.0.0.1:8080:8080 --volume ordgate:/var/lib/ordgate \
#     --volume ./proxy.toml:/etc/ordgate/proxy.toml:ro --env ORDGATE_CONFIG=/etc/ordgate/proxy.toml \
#     --volume ./api-keys:/run/secrets/api-keys:ro ordgate
#
# deploy/container/prove runs these commands without a container engine, and shows what the
# result needs and does not need. CI runs it.

FROM rust:1.95.0-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "errexit", "-o", "pipefail", "-c"]
# musl, since a static glibc needs its own shared libraries to resolve names. The versions are
# those of the Debian release above.
# hadolint ignore=DL3008
RUN apt-get update --quiet && \
    apt-get install --yes --quiet --no-install-recommends binutils ca-certificates musl-tools && \
    rm -rf /var/lib/apt/lists/*
RUN rustup target add "$(uname -m)-unknown-linux-musl"
# The binary lists the crates that it is made of, for scanners, and some optional ones that it does
# not use, which `cargo metadata` adds. ordgate.cdx.json of a release has no others.
RUN cargo install --quiet --locked --root /opt/tools --version 0.7.7 cargo-auditable
ENV PATH=/opt/tools/bin:$PATH
WORKDIR /build
# No path of the machine that builds is in the binary.
ENV RUSTFLAGS="--remap-path-prefix=/build=/ordgate --remap-path-prefix=/usr/local/cargo=/cargo"
# Nor is the time of the build, which mimalloc would print: two builds give the same bytes.
ENV CFLAGS="-ffile-prefix-map=/build=/ordgate -ffile-prefix-map=/usr/local/cargo=/cargo -Wno-builtin-macro-redefined -D__DATE__=\"none\" -D__TIME__=\"none\""

# The dependencies, in a layer of their own, which stays until Cargo.lock changes: a crate with
# empty sources. cargo wants to see the files of the benchmarks and tests that Cargo.toml names.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src benches tests/gateway tests/simulation tests/engine && \
    for name in walk memory offload; do touch "benches/$name.rs"; done && \
    for name in gateway simulation engine; do touch "tests/$name/main.rs"; done && \
    echo '//! Empty.' >src/lib.rs && printf '//! Empty.\nfn main() {}\n' >src/main.rs && \
    cargo auditable build --locked --profile packaged --features otlp --target "$(uname -m)-unknown-linux-musl"

# What `ordgate --version` says: --build-arg COMMIT="$(git rev-parse HEAD)" --build-arg
# COMMIT_TIME="$(git log -1 --format=%ct)". Not by the variables that build.rs reads: a change of
# SOURCE_DATE_EPOCH builds all C dependencies anew, since GCC reads it for __DATE__ (the crate cc
# tells cargo so).
ARG COMMIT
ARG COMMIT_TIME
COPY . .
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT $COMMIT_TIME" >build-commit; fi && \
    touch src/lib.rs src/main.rs && \
    cargo auditable build --locked --profile packaged --features otlp --target "$(uname -m)-unknown-linux-musl" && \
    install -D -s -m 0755 "target/$(uname -m)-unknown-linux-musl/packaged/ordgate" /image/usr/bin/ordgate && \
    install -D -m 0644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt && \
    install -d -m 0700 /state/ordgate

FROM scratch
ARG COMMIT
LABEL org.opencontainers.image.title="ordgate" \
      org.opencontainers.image.description="A caching gateway for the Ordinals and Runes read API" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build /image/ /
COPY --from=build --chown=65532:65532 /state/ /var/lib/
ENV PATH=/usr/bin
# Loopback of a container is reached by nobody. This replaces server.listen of a configuration
# file; empty, it does not. The admin listener stays on the container's loopback, where `docker
# exec` and the health check reach it.
ENV ORDGATE_LISTEN=0.0.0.0:8080
# The state directory, unless --state, ORDGATE_STATE or the configuration file names another.
ENV STATE_DIRECTORY=/var/lib/ordgate
VOLUME /var/lib/ordgate
USER 65532:65532
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s CMD ["/usr/bin/ordgate", "health"]
ENTRYPOINT ["/usr/bin/ordgate"]
CMD ["serve"]
