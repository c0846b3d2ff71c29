# make run    builds bin/ and trains a small model on 4 ranks
# make test   runs the tests with few processes, one case of every kind; make test-all runs every test
# Both install Open MPI and OpenBLAS where they are missing and the user may.
# make test-slurm, make test-hosts   the same programs under a real Slurm, and on
#                                    several hosts, both made on this machine by root

NP   ?= 4
APPS := $(filter-out internal,$(notdir $(wildcard apps/*)))

# As root, and on fewer cores than ranks, Open MPI wants to be asked; a rank's
# goroutines run on several cores.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe ?= 1
export OMPI_MCA_hwloc_base_binding_policy ?= none
export PRTE_ALLOW_RUN_AS_ROOT := 1
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
export PRTE_MCA_hwloc_default_binding_policy ?= none

# Go asks git for the commit to note in a program, which fails in a checkout that
# belongs to somebody else: it is left out. Flags of the environment, of this
# command line or of `go env -w` stay.
override GOFLAGS := $(or $(GOFLAGS),$(shell go env GOFLAGS 2>/dev/null))
ifeq ($(findstring -buildvcs,$(GOFLAGS)),)
override GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)
endif
export GOFLAGS

# With -trimpath Go's cache serves all checkouts: what has been built in one, others need not compile. What
# somebody builds to use has the paths of its sources: debuggers, and `launch new`, want them.
lint test test-all test-slow test-costs cover test-slurm test-hosts: override GOFLAGS += -trimpath

# Debian's and Ubuntu's paths of MPI on x86-64 stand in the sources, and gompi has no
# others. On arm64 and on other systems the compiler wrapper knows them.
ifeq ($(wildcard /usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h),)
export CGO_CFLAGS  ?= $(shell mpicc --showme:compile 2>/dev/null) -O2 -g
export CGO_LDFLAGS ?= $(shell mpicc --showme:link 2>/dev/null)
endif

# What git says of the checkout, for --version and the folders of runs; nothing where it cannot be asked.
COMMIT := $(shell git -c safe.directory='*' describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)

# Tests that are not for every change have all cases.
test-gpu test-arm64 race cover: export LOCKSTEP_TESTS := all

# Tests leave no folders of runs.
test test-all test-slow test-costs cover test-page test-gpu test-slurm test-hosts test-arm64 test-faults soak fuzz fuzz-kernels race bench: export LOCKSTEP_RUNS := off

.PHONY: run build test test-all test-slow test-costs cover test-page test-gpu test-slurm test-hosts test-arm64 test-faults soak fuzz fuzz-kernels race lint bench deps nvrtc clean

run: build
	mpirun -np $(NP) bin/train --model modern-tiny --steps 300

build: deps
	@mkdir -p bin
	@test -e bin/launch || printf '%s\n' "The first build compiles Go's packages, the modules of go.mod and this one:" \
		"a minute or two on 2 cores, behind the download of what is missing. Later builds take seconds."
	go build -ldflags="-X lockstep/internal/process.stamped=$(COMMIT)" -o bin/ $(addprefix ./apps/,$(APPS)) ./launch ./launch/launch-probe

# Tests that may run beside others mostly wait: for a program to start, to hang, to be ended. So do whole packages, of
# which four run at a time. Without tables for a debugger a test links in half the time. What go vet finds is for make
# lint, which looks for more than go test would. The packages that wait the longest begin first, beside those that
# compute. Compiler, linker and tests take a tenth less of the processors where garbage is collected less often, and a
# start of ranks a tenth less where Open MPI does not look for other networks than the one that it would find.
# No test has a limit but that of a hang: 30 minutes are for a machine that is slow and busy.
FLAGS = -count=1 -p 4 -parallel 8 -timeout 30m -vet=off -ldflags=-w
TESTS = $(FLAGS) ./spmd ./launch/plan ./spmd/internal/watch ./apps/train ./apps/train/trainer ./...

# make test leaves out whole packages: those that try launchers, measure, bind libraries, or hold programs and tools.
# 40 test programs are linked at most.
ROOMS = ./spmd ./apps/train/trainer ./spmd/internal/watch ./launch/plan $(addprefix ./spmd/,arrayfile blas checkpoint fft gokernel \
	parallel random vector internal/...) $(addprefix ./apps/train/,. gpt layout ops text) ./cudampi ./cuda ./nccl ./host \
	$(addprefix ./internal/,elem rooms) ./launch/scaffold
QUICK := test test-all test-slow test-costs
$(QUICK): export GOGC ?= 400
$(QUICK): export OMPI_MCA_pml ?= ob1

# One case of every kind, and few processes: ranks are goroutines, but in one test of each kind of start. What it leaves
# out it says at its end.
test: deps nvrtc
	go run ./internal/suite -- $(FLAGS) $(ROOMS)

# Every case: each fault, each division of a model, each type by each size by each way.
test-all: deps nvrtc
	go run ./internal/suite --all -- $(TESTS)

# make test with the slowest tests, and what each package takes of the processors.
test-costs: deps nvrtc
	go run ./internal/suite --costs -- $(FLAGS) $(ROOMS)

# make test with half of one core, beside eight processes that compute: for root.
test-slow: deps nvrtc
	internal/suite/slow.sh go run ./internal/suite -- $(FLAGS) -timeout 3h $(ROOMS)

# Which statements of these packages the tests of all of them run, in %, of every process: but of ranks that a test has ended.
COVERED := ./spmd ./spmd/internal/... ./spmd/parallel ./spmd/checkpoint ./cudampi ./launch/...
cover: deps nvrtc
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir "$$dir/counters" && export GOCOVERDIR="$$dir/counters" && \
	{ go test -count=1 -p 2 -parallel 8 -timeout 1h -vet=off -covermode=atomic -coverpkg=$$(go list $(COVERED) | paste -sd,) $(COVERED) \
		-args -test.gocoverdir="$$GOCOVERDIR" || touch "$$dir/failed"; } | sed '/^\t.*coverage: 0.0%/d; s/\tcoverage: .*//' && \
	printf '\n%6s  %s\n' % package && go tool covdata percent -i="$$GOCOVERDIR" | awk '{ printf "%6s  %s\n", $$3, $$1 }' | tr -d % && \
	go tool covdata func -i="$$GOCOVERDIR" | awk 'END { printf "%6s  all\n", $$NF }' | tr -d % && test ! -e "$$dir/failed"

# Every test on this machine's GPUs. The programs can be taken to another machine,
# where ./test-gpu.sh runs them without Go. Each lies in its package's folder under
# bin/test, since its tests read files there.
test-gpu: deps
	@rm -rf bin/test
	@go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./spmd/... ./cuda/... ./nccl ./apps/... ./bench/... ./launch/scaffold/kinds/... | while read -r p; do \
		dir=bin/test/$${p#lockstep/}; echo "$$dir"; \
		go test -c -ldflags='-s -w' -o "$$dir/$${p##*/}.test" "$$p" || exit 1; \
	done
	docs/examples/overlay.sh bin/test/overlay # the examples become part of their test
	go test -c -ldflags='-s -w' -overlay bin/test/overlay/overlay.json -o bin/test/docs/examples/examples.test ./docs/examples
	./test-gpu.sh

# Each row of docs/faults.md LOCKSTEP_FAULTS times, two at a time; ten times as often a
# program that saves checkpoints, killed at a random moment and started again; and five
# times as often a run that saves after every step, a rank of it stopped or killed. The
# rows that are a test of train's come last.
LOCKSTEP_FAULTS ?= 20
test-faults: deps
	@status=0; \
	faults() { \
		(cd $$1 && LOCKSTEP_FAULTS=$$2 go test -count=1 -parallel 2 -timeout 0 -run "$$3") || status=1; \
	}; \
	faults spmd $(LOCKSTEP_FAULTS) '^TestFaults$$'; \
	faults spmd/checkpoint $$((10 * $(LOCKSTEP_FAULTS))) '^TestCheckpointCrash$$'; \
	faults apps/train $$((10 * $(LOCKSTEP_FAULTS))) '^TestKilled$$'; \
	faults apps/train $$((5 * $(LOCKSTEP_FAULTS))) '^TestStruck$$'; \
	(cd apps/train && go test -count=$(LOCKSTEP_FAULTS) -timeout 0 -run '^(TestRestarts|TestTwoJobs|TestRequeued|TestTruncatedTokenFile)$$') || status=1; \
	exit $$status

# A two-node Slurm on this machine, with every batch script of launch/slurm.
test-slurm: build
	@./deps.sh launch
	LOCKSTEP_SLURM=1 go test -count=1 -timeout 30m -run '^TestSlurm' ./launch

# Two and three hosts, which are network namespaces of this machine.
test-hosts: build
	@./deps.sh launch
	LOCKSTEP_HOSTS=1 go test -count=1 -timeout 30m -run '^TestHosts' ./launch

# Everything built for linux/arm64, and its tests, emulated: hours on two cores.
# PACKAGES="./cudampi ./spmd" make test-arm64 takes some of them.
test-arm64: deps
	./test-arm64.sh $(PACKAGES)

# A job of 4 ranks that goes on, and must not hold more and more: SOAK=10m make soak.
SOAK ?= 1h
soak: deps
	LOCKSTEP_SOAK=$(SOAK) go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./spmd

# Random collectives and messages, compared with what one rank computes: FUZZ=1h make fuzz. A failure says the seed,
# which LOCKSTEP_FUZZ_SEED makes again.
FUZZ ?= 10m
fuzz: deps
	LOCKSTEP_FUZZ=$(FUZZ) go test -count=1 -timeout 0 -v -run '^TestFuzz$$' ./spmd

# Random kernels in Go, on the host and emulated: FUZZ=1h make fuzz-kernels, with the seed of make fuzz.
fuzz-kernels:
	LOCKSTEP_FUZZ=$(FUZZ) go test -count=1 -timeout 0 -v -run '^TestFuzz$$' ./spmd/spmdgen

race: deps nvrtc
	go test -race -count=1 -timeout 1h ./...

lint: deps
	@files=$$(gofmt -l .) || exit 1; if [ -n "$$files" ]; then echo "gofmt would change:" $$files >&2; exit 1; fi
	go vet ./...
	go tool -modfile=tools/go.mod staticcheck ./...

# The numbers of bench/results, measured anew on this machine.
bench: build
	go build -o bin/ ./bench
	bin/bench

deps:
	@./deps.sh

# The page of --dashboard in headless Chromium, checked by axe-core. Both are installed
# where they are missing and the user may.
test-page: deps
	@./deps.sh page
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && npm install --silent --no-fund --no-audit --prefix "$$dir" axe-core && \
	LOCKSTEP_AXE="$$dir/node_modules/axe-core/axe.js" go test -count=1 -v -run '^TestPage$$' ./spmd/dashboard

# What only tests need, where it can be had.
nvrtc: deps
	@./deps.sh nvrtc

clean:
	rm -rf bin
