# Aviary. `make` alone lists what there is to do.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
APP     := github.com/aviaryhq/aviary/internal/app
LDFLAGS := -s -w -X $(APP).version=$(VERSION) -X $(APP).commit=$(COMMIT)

STACK    := go run ./test/stack/cmd/stack
# Go fetches modules before the demo can say so. Of those that only the demo and the services need, these two are looked for.
FETCHED  := GOPROXY=off go list -m -f '{{.Dir}}' github.com/apache/pulsar-client-go github.com/google/cel-go 2>/dev/null
MODULES  := [ "$$($(FETCHED) | grep -c .)" = 2 ] || echo "== Go modules will be fetched: about 250 MB, to $$(go env GOMODCACHE)"
# Not go run: SIGTERM would end that and not the demo. Without cgo there is less to compile, and without optimisation that takes half the time;
# test/demo/build.go has the same options. The shell becomes the demo, which tells the time since it began.
DEMO     := $(MODULES); CGO_ENABLED=0 go build -gcflags='all=-N -l -dwarf=false' -ldflags='-s -w' -o bin/.demo ./test/demo && exec bin/.demo
BIN      ?= bin
FUZZTIME ?= 20s
SEEDS    ?= 5000
# How long make zones cuts a zone off.
ZONES_SECONDS ?= 60

# golangci-lint is built by the Go in use into the user's cache. It is not in go.mod.
GOLANGCI_VERSION    := v2.15.0
GOVULNCHECK_VERSION := v1.9.0
CYCLONEDX_VERSION   := v1.10.0
TOOLS = $${XDG_CACHE_HOME:-$$HOME/.cache}/aviary/tools/golangci-lint-$(GOLANGCI_VERSION)-$$(go env GOVERSION)

# kubectl-validate is built likewise: its Kubernetes is not that of test/deployments/helm. The API server is that of test/deployments/helm/apiserver.
KUBECTL_VALIDATE_VERSION := v0.0.4
HELM_TOOLS = $${XDG_CACHE_HOME:-$$HOME/.cache}/aviary/tools/kubectl-validate-$(KUBECTL_VALIDATE_VERSION)-$$(go env GOVERSION)
KUBERNETES = $${XDG_CACHE_HOME:-$$HOME/.cache}/aviary/tools/kubernetes

.PHONY: help
help: ## List the targets
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: need-go
need-go:
	@command -v go >/dev/null || { echo "make: go not found: install the version that go.mod names, or newer, and put it on PATH" >&2; exit 1; }

.PHONY: build
build: need-go ## Build every binary into bin/
	@mkdir -p '$(BIN)'
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o '$(BIN)/' ./cmd/...

.PHONY: image
image: need-go ## Build an image of a container for every service with docker, podman or buildah
	@VERSION='$(VERSION)' COMMIT='$(COMMIT)' deployments/docker/image.sh

.PHONY: release
release: need-go ## Make the archives of VERSION=0.1.0 in dist/, with SBOMs and checksums; publish nothing
	@VERSION='$(if $(filter command line environment,$(origin VERSION)),$(VERSION))' COMMIT='$(COMMIT)' CYCLONEDX_VERSION='$(CYCLONEDX_VERSION)' deployments/release/release.sh

.PHONY: run
run: need-go ## Run the demo of the suite until Ctrl-C
	@$(DEMO)

.PHONY: smoke
smoke: need-go ## Run the demo unattended and verify it end to end
	@$(DEMO) -smoke

.PHONY: check
check: lint build ## Lint, build, and run the tests that need no server: two minutes, less where nothing changed
	@go test -short -vet=off ./cmd/... ./internal/... ./pkg/... ./test/configuration ./test/demo/display ./test/documents ./test/history ./test/verdict ./test/fakebroker

.PHONY: test
test: need-go ## Run every test, those on real servers too
	@.ci/test

.PHONY: fresh
fresh: need-go ## Run the first commands of the README in a fresh clone, with empty caches of Go
	@.ci/fresh

.PHONY: soak
soak: need-go ## Run randomised tests and faults for long, with fresh seeds: SEEDS=5000, SECONDS=600, EVENTBRIDGE_SECONDS=600, PIGEONHOLE_SECONDS=600 or MONITORING=1
ifeq ($(origin SECONDS),command line)
	@AVIARY_SONIC_SECONDS='$(SECONDS)' go test -count 1 -timeout "$$(( $(SECONDS) / 30 + 90 ))m" -v ./test/e2e/sonic
	@AVIARY_TEST_STEPS="$$(( $(SECONDS) * 100 ))" go test -count 1 -timeout 120m -p 1 ./internal/sonic/script ./internal/sonic/proxy ./internal/sonic/wire
else ifeq ($(origin EVENTBRIDGE_SECONDS),command line)
	@AVIARY_EVENTBRIDGE_SECONDS='$(EVENTBRIDGE_SECONDS)' go test -count 1 -timeout "$$(( $(EVENTBRIDGE_SECONDS) / 20 + 60 ))m" -p 1 -v \
	  ./test/e2e/eventbridge ./internal/eventbridge/ingest ./internal/eventbridge/delivery ./internal/eventbridge/engine ./internal/eventbridge/registry/store
else ifeq ($(origin PIGEONHOLE_SECONDS),command line)
	@AVIARY_PIGEONHOLE_SECONDS='$(PIGEONHOLE_SECONDS)' go test -count 1 -timeout "$$(( $(PIGEONHOLE_SECONDS) / 5 + 60 ))m" -p 1 -v \
	  ./test/e2e/pigeonhole ./internal/connector/pulsar ./internal/connector/pipeline
else ifeq ($(origin MONITORING),command line)
	@AVIARY_MONITORING_FAULTS=1 go test -count 1 -timeout 20m -v ./test/e2e/monitoring
else
	@AVIARY_MODEL_SEEDS='$(SEEDS)' AVIARY_MODEL_BROKER_SEEDS=20 AVIARY_MESSAGING_SOAK=1 go test -count 1 -timeout 120m -v \
	  -run '^(TestModel|TestModelOnTheBroker|TestBacklogOfLargeMessagesFitsTheBudget|TestReaderFromATimeMissesNothing)$$' ./pkg/messaging
	@AVIARY_MATCH_SEEDS='$(SEEDS)' go test -count 1 -timeout 60m -run '^TestDifferential$$' ./pkg/eventpattern
	@$(MAKE) zones ZONES_SECONDS=10
endif

.PHONY: zones
zones: need-go ## Run four zones: one is cut off for ZONES_SECONDS=60, all are upgraded, also from UPGRADE_FROM=revision, and one is lost and replaced
	@AVIARY_ZONES_SECONDS='$(ZONES_SECONDS)' AVIARY_ZONES_FROM='$(UPGRADE_FROM)' go test -count 1 -timeout "$$(( $(ZONES_SECONDS) / 60 + 60 ))m" -v ./test/e2e/zones

# The seeds of every target run in its package's tests as well. A number of runs ends without the "context deadline exceeded" of a time.
.PHONY: fuzz
fuzz: need-go ## Fuzz every parser, each for FUZZTIME=20s, or FUZZTIME=20000x runs
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' cmd internal pkg test | sed 's|/[^/]*:func | |' | \
	  while read -r package target; do \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime '$(FUZZTIME)' "./$$package"; \
	  done

# The meanings are compiled into what writes the files: they are written first.
.PHONY: configs
configs: need-go ## Write configs/*.yaml, and the options on the pages of the services, from the types of the configurations
	@go test -count 1 ./test/configuration -run '^TestMeanings$$' -args update
	@go test -count 1 ./test/configuration -run '^TestFiles$$' -args update

.PHONY: lint
lint: need-go ## Check style, imports between parts, go.mod and scripts
	@tools="$(TOOLS)"; \
	if [ ! -x "$$tools/golangci-lint" ]; then \
	  echo "building golangci-lint $(GOLANGCI_VERSION), once" >&2; \
	  GOBIN="$$tools" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION); \
	fi; \
	"$$tools/golangci-lint" run
	@go mod tidy -diff
	@.ci/comments
	@git ls-files .ci '*.sh' | xargs -n 1 bash -n
	@if command -v shellcheck >/dev/null; then git ls-files .ci '*.sh' | xargs shellcheck; fi

.PHONY: helm-test
helm-test: build ## Render the Helm chart, have the services check their configurations, and test what the chart promises
	@go -C test/deployments/helm mod tidy -diff
	@go -C test/deployments/helm test -count 1 .

.PHONY: helm-check
helm-check: build ## As helm-test, and have Kubernetes' schemas check the objects (kubectl-validate, which is built once)
	@tools="$(HELM_TOOLS)"; \
	if [ ! -x "$$tools/kubectl-validate" ]; then \
	  echo "building kubectl-validate $(KUBECTL_VALIDATE_VERSION), once" >&2; \
	  CGO_ENABLED=0 GOBIN="$$tools" go install -ldflags '-s -w' sigs.k8s.io/kubectl-validate@$(KUBECTL_VALIDATE_VERSION); \
	fi; \
	AVIARY_KUBECTL_VALIDATE="$$tools/kubectl-validate" go -C test/deployments/helm test -tags kubectl -count 1 .

.PHONY: helm-apply
helm-apply: need-go ## Build Kubernetes' API server, which takes minutes, and install, upgrade and remove the Helm chart there
	@go -C test/deployments/helm/apiserver build -ldflags '-s -w' -o "$(KUBERNETES)/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
	@go -C test/deployments/helm/apiserver build -ldflags '-s -w' -o "$(KUBERNETES)/etcd" go.etcd.io/etcd/server/v3
	@AVIARY_KUBERNETES="$(KUBERNETES)" go -C test/deployments/helm test -tags apiserver -count 1 -v -run '^TestAPIServer' .

.PHONY: vuln
vuln: need-go ## Look for known vulnerabilities (needs the Go vulnerability database)
	@go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: bench
bench: need-go ## Run a benchmark: make bench SCENARIO=name, or make bench WORKLOAD=file.yaml
	@go run ./test/bench -scenario '$(SCENARIO)' -workload '$(WORKLOAD)'

.PHONY: dashboards
dashboards: need-go ## Generate the dashboards of Grafana from deployments/grafana/source
	@go -C deployments/grafana/source run . -to ..

.PHONY: stack-up
stack-up: need-go ## Start real servers: make stack-up SERVICES="pulsar"
	@$(STACK) up $(SERVICES)

.PHONY: stack-down
stack-down: need-go ## Stop the servers of this checkout, those of demo and tests too
	@$(STACK) down

.PHONY: clean
clean: ## Remove bin/
	@rm -rf bin
