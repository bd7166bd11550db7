# Two commands matter: `make demo` and `make test`. Each installs what it lacks and says so.

SINK := connectors/queen-s3
VENV := $(CURDIR)/.venv

export PATH := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

# Binaries are looked for where cargo puts them of itself.
unexport CARGO_TARGET_DIR

.DEFAULT_GOAL := help
.PHONY: help demo test readers simulate chaos fuzz mutants bench bench-steps lint audit alerts fmt build clean

help:
	@echo 'make demo   start everything, push 100,000 events, check the lake'
	@echo 'make test   every test, with real processes'
	@echo 'make readers   lakes of every shape, read by six readers; installs 2 GB'
	@echo 'make simulate SEEDS=1000   that many histories of faults, in virtual time'
	@echo 'make chaos MINUTES=10   real processes under faults of every kind, then every record counted'
	@echo 'make fuzz SECONDS=60   changed bytes for everything that reads foreign ones, so long each'
	@echo 'make mutants   planted bugs, and how many seeds the simulation needs to find each'
	@echo 'make bench  the whole deployment, measured against the work that it cannot avoid'
	@echo 'make bench-steps   the steps of the sink alone'
	@echo 'make lint   formatting, clippy, licences of the dependencies'
	@echo 'make audit  known weaknesses of the dependencies; asks the advisory database'
	@echo 'make alerts   whether each alert of deploy/ fires when it should; downloads 20 MB'
	@echo 'make fmt    format the code'
	@echo 'make build  release binaries of the broker and the sink, in target/release'
	@echo 'make clean  remove what was built'

# Built as the tests are, so that the second of the two commands finds everything compiled.
demo:
	@scripts/setup run
	cargo build --locked --workspace --bins
	cargo build --locked --manifest-path $(SINK)/Cargo.toml
	@QUEEN_S3_BIN='$(CURDIR)/$(SINK)/target/debug/queen-s3' PYTHON='$(VENV)/bin/python' \
	  target/debug/queen-demo

# The sink's tests come first: the end-to-end tests of the workspace run its binary.
test:
	@scripts/setup run test
	cargo build --locked --manifest-path $(SINK)/Cargo.toml
	PYTHON='$(VENV)/bin/python' cargo nextest run --locked --manifest-path $(SINK)/Cargo.toml
	cargo build --locked --workspace --bins
	QUEEN_S3_BIN='$(CURDIR)/$(SINK)/target/debug/queen-s3' PYTHON='$(VENV)/bin/python' \
	  cargo nextest run --locked --workspace

# Apart from the tests: ClickHouse and Spark are large.
readers:
	@scripts/setup run readers
	cargo build --locked --manifest-path $(SINK)/Cargo.toml
	cargo build --locked --workspace --bins
	@QUEEN_S3_BIN='$(CURDIR)/$(SINK)/target/debug/queen-s3' PYTHON='$(VENV)-readers/bin/python' \
	  target/debug/queen-readers

SEEDS ?= 1000

simulate:
	@scripts/setup build
	QUEEN_SIM_SEEDS=$(SEEDS) cargo test --locked --manifest-path $(SINK)/Cargo.toml \
	  --test simulation whatever_happens -- --nocapture

MINUTES ?= 10
SECONDS ?= 60
# Another one every time, printed by the run; SEED=7 repeats one.
SEED ?= $(shell date +%s)

chaos:
	@scripts/setup run
	cargo build --locked --manifest-path $(SINK)/Cargo.toml
	cargo build --locked --workspace --bins
	QUEEN_S3_BIN='$(CURDIR)/$(SINK)/target/debug/queen-s3' PYTHON='$(VENV)/bin/python' \
	  QUEEN_CHAOS_MINUTES=$(MINUTES) QUEEN_CHAOS_SEED=$(SEED) \
	  cargo test --locked --workspace --test e2e chaos_loses -- --nocapture

fuzz:
	@scripts/setup build
	QUEEN_FUZZ_SECONDS=$(SECONDS) QUEEN_FUZZ_SEED=$(SEED) \
	  cargo test --locked --manifest-path $(SINK)/Cargo.toml --test fuzz -- --nocapture

mutants:
	@scripts/setup build mutants
	scripts/mutants

# BENCH="backlog --repetitions 3" measures one scenario; without it, all of them, in about 45 minutes.
BENCH ?=

bench: build
	@scripts/setup run
	cargo build --locked --release --package queen-bench
	QUEEN_S3_BIN='$(CURDIR)/$(SINK)/target/release/queen-s3' QUEEN_BIN='$(CURDIR)/target/release/queen' \
	  target/release/queen-bench --out "bench/results/$$(date +%F).json" $(BENCH)

bench-steps:
	@scripts/setup build
	QUEEN_BENCH_OUT='$(CURDIR)/bench/results/'$$(date +%F)'-steps.json' \
	  cargo bench --locked --manifest-path $(SINK)/Cargo.toml --bench steps

lint:
	@scripts/setup build lint
	cargo fmt --all --check
	cargo fmt --all --check --manifest-path $(SINK)/Cargo.toml
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --manifest-path $(SINK)/Cargo.toml --all-targets -- -D warnings
	cargo deny --locked --workspace --config deny.toml check bans licenses sources
	cargo deny --locked --manifest-path $(SINK)/Cargo.toml --config deny.toml \
	  check bans licenses sources

# Fails where the database of advisories cannot be fetched: not knowing is no good news.
audit:
	@scripts/setup build lint
	cargo deny --locked --workspace --config deny.toml check advisories
	cargo deny --locked --manifest-path $(SINK)/Cargo.toml --config deny.toml check advisories

# Apart from the tests: promtool comes with all of Prometheus.
PROMTOOL = $(or $(shell command -v promtool),.promtool/usr/bin/promtool)

alerts:
	@scripts/setup alerts
	$(PROMTOOL) check rules deploy/prometheus/alerts.yml
	$(PROMTOOL) check config deploy/prometheus/scrape.yml
	$(PROMTOOL) test rules deploy/prometheus/alerts_test.yml

fmt:
	cargo fmt --all
	cargo fmt --all --manifest-path $(SINK)/Cargo.toml

build:
	@scripts/setup build
	cargo build --locked --release --package queen
	cargo build --locked --release --manifest-path $(SINK)/Cargo.toml
	cp $(SINK)/target/release/queen-s3 target/release/

clean:
	cargo clean
	cargo clean --manifest-path $(SINK)/Cargo.toml
