# The two commands are `make run` and `make test`; `make help` lists the rest.
TARGET := $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := help
.PHONY: run test test-peers dist dashboard bench bench-quick bench-gate fmt lint fuzz help

run: ## build the gateway (minutes the first time), start it with a demo origin; prints requests and the dashboard's address
	@tools/quickstart

test: ## everything that has to pass: format, lints, unit, black-box and conformance tests, fuzzing
	@tools/test

test-peers: ## tests against heavy peers (Kafka, Dubbo, RocketMQ, Open Policy Agent, FerretDB, helm), fetched and built within BUDGET minutes, 20 by default
	@tools/test-peers $(or $(BUDGET),20)

dist: ## build what is measured and shipped, target/dist/weir: link-time and profile-guided optimisation
	tools/install-test-deps
	tools/build-dist

dashboard: ## build the files of the dashboard from dashboard/src, with Node.js and npm; they are committed
	cd dashboard && npm ci --no-audit --no-fund && npm run build

bench-quick: dist ## CPU per request against nginx and a byte relay, in about two minutes
	bench/quick.py --weir $(TARGET)/dist/weir --relay $(TARGET)/dist/relay \
	    --json bench/results/quick.json --markdown bench/results/quick.md

bench: dist ## all published benchmarks, side by side; PROFILE=quick (25 minutes), full (the default) or published
	bench/install-tools
	BENCH_TOOLS=$(TARGET)/bench-tools/bin bench/run.py --profile $(or $(PROFILE),full) $(if $(filter quick,$(PROFILE)),--budget 23) \
	    --weir $(TARGET)/dist/weir --origin $(TARGET)/dist/origin $(BENCH_FLAGS)

bench-gate: dist ## fails when a request costs more against nginx than bench/baseline.json says; two minutes
	bench/gate.py --weir $(TARGET)/dist/weir $(BENCH_FLAGS)

fmt: ## format the code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

lint: ## formatting and clippy, as the tests want them
	tools/test lint

fuzz: ## run each fuzz target, SECONDS=30 by default
	fuzz/run $(or $(SECONDS),30)

help:
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16
