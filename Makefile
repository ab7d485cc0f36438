# Quorumq's entry points. Each target that builds sets the machine up first (scripts/setup): it checks the Rust
# toolchain, installs the Debian packages that are missing, and builds RocksDB once. A second run finds all in place.

CACHE ?= $(HOME)/.cache/quorumq
CARGO_TARGET_DIR ?= $(CACHE)/target
export CACHE CARGO_TARGET_DIR

# Runs a command in the environment that building needs.
WITH := scripts/with-env

.DEFAULT_GOAL := help
.PHONY: help build run test unit cluster lint fmt deny advisories sbom fresh bench chaos azure fuzz image browser mosquitto compose conformance security clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## the release binaries quorumq and quorumq-bench, in $(CARGO_TARGET_DIR)/release
	@$(WITH) run cargo build --release --locked --package quorumq --package quorumq-bench --bins

run: build ## a three-node cluster on ports 1883, 1884, 1885, until Ctrl-C
	@$(WITH) run scripts/run-cluster

test: ## everything: format, lints, unit and property tests, three-node clusters of the release binary
	@$(WITH) test scripts/test all

unit: ## unit and property tests only
	@$(WITH) test scripts/test unit

cluster: ## cluster tests of the release binary only; ONLY=<part of the name of a test or its file> picks some
	@$(WITH) test scripts/test cluster $(ONLY)

lint: ## formatting and lints
	@$(WITH) test scripts/test lint

fmt: ## format the sources
	for workspace in . cluster-tests/azure cluster-tests/fuzz; do \
	  cargo fmt --all --manifest-path $$workspace/Cargo.toml || exit; done

deny: ## licences, sources and forbidden packages among the dependencies
	@$(WITH) deny cargo deny --locked check bans licenses sources

ADVISORY_DB ?= .ci/advisory-db
advisories: ## known vulnerabilities of locked packages, offline: ADVISORY_DB=<a checkout of rustsec/advisory-db>
	@scripts/advisories --self-test
	@scripts/advisories $(ADVISORY_DB)

SBOM ?= $(CARGO_TARGET_DIR)/quorumq.cdx.json
sbom: ## what the binary is made of, as CycloneDX 1.5: SBOM=<file>
	@mkdir -p "$(dir $(SBOM))"
	@cargo metadata --locked --format-version 1 --filter-platform "$$(rustc -vV | sed -n 's/^host: //p')" | scripts/sbom > "$(SBOM).new"
	@mv "$(SBOM).new" "$(SBOM)" && echo "$(SBOM)"

fresh: ## set-up on a minimal Debian 12 and 13, as root and as a user; needs root and debootstrap
	@scripts/fresh

bench: ## figures, beside etcd, Mosquitto, rumqttd, RabbitMQ and NATS, as far as they are installed
	@$(WITH) test scripts/bench

chaos: ## faults from a seed, for minutes: SEED=7 SECONDS_OF_FAULTS=300; STALLS=1: disks that stall; SECURE=1: TLS and passwords
	@$(WITH) test scripts/chaos

azure: ## Azure IoT Operations' own client against three nodes; part of the cluster tests
	@$(WITH) test scripts/test cluster azure_iot_operations

fuzz: ## fuzz the decoders and the cluster port: FUZZ_SECONDS=60
	@$(WITH) test scripts/fuzz

conformance: ## docs/conformance.md: the MQTT standards' statements and what shows them
	@$(WITH) run cargo run --quiet --locked --package cluster-tests --bin conformance > docs/conformance.md.new
	@mv docs/conformance.md.new docs/conformance.md

security: ## the table in docs/security.md: who gets in where, and the tests that show it
	@$(WITH) run cargo run --quiet --locked --package cluster-tests --bin security

IMAGE ?= quorumq:latest
BASE ?= debian:bookworm-slim
image: build ## a Docker image of the release binaries, for docker compose: IMAGE=quorumq:latest BASE=debian:bookworm-slim
	@rm -rf "$(CACHE)/image" && mkdir -p "$(CACHE)/image"
	@cp "$(CARGO_TARGET_DIR)/release/quorumq" "$(CARGO_TARGET_DIR)/release/quorumq-bench" "$(CACHE)/image/"
	docker build -t $(IMAGE) --build-arg BASE=$(BASE) -f deploy/docker/Dockerfile "$(CACHE)/image"

browser: ## MQTT.js in headless Chromium, which is installed if it is missing, over WebSocket without and with TLS
	@$(WITH) browser scripts/browser

mosquitto: ## ACL files, read by Mosquitto and by a node: SEED=7; installs Mosquitto, which Debian starts on port 1883
	@$(WITH) mosquitto scripts/mosquitto

compose: ## docker-compose.yml with the image that is there: TLS, confinement, a node killed; needs a Docker engine
	@scripts/compose

clean: ## remove what building, testing and running left, but not the RocksDB and the tools that were built once
	rm -rf "$(CARGO_TARGET_DIR)" "$(CACHE)/image" "$(CACHE)/tmp" "$(CACHE)/fresh"
