# Thin front ends. `make demo` and `make test` do everything from a clean clone.
SHELL := /bin/bash
MHLA_PYTHON ?=
JOBS ?= $(shell nproc)
WERROR ?=
# Left as configured before unless given: changing it recompiles everything.
CONFIGURE = -DMHLA_PYTHON=$(MHLA_PYTHON) $(if $(WERROR),-DMHLA_WERROR=$(WERROR))
# Prefer the tools that scripts/setup put into .venv.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup build demo test asan fuzz emulate cuda lint format clean

help:
	@echo "make demo    verify the operator, then train softmax, linear and MHLA on a small task and compare"
	@echo "make test    build and run all tests"
	@echo "make asan    the same under the address and undefined-behaviour sanitizers"
	@echo "make fuzz    run every fuzzer (SECONDS_EACH=60)"
	@echo "make emulate run CUDA kernels on the CPU and compare them with the f64 oracle"
	@echo "make cuda    compile with the CUDA kernels"
	@echo "make lint    formatting, clang-tidy, shell syntax, documents"
	@echo "make format  rewrite the sources with clang-format"
	@echo "make clean   remove build/ and out/"

setup:
	@MHLA_PYTHON=$(MHLA_PYTHON) scripts/setup

build: setup
	@cmake --preset release $(CONFIGURE) -DMHLA_BUILD_PROGRAM=ON
	@cmake --build --preset release -j $(JOBS) --target mhla_demo

demo: build
	@scripts/demo build/release/bin/mhla

test: setup
	@cmake --preset release $(CONFIGURE) -DMHLA_BUILD_PROGRAM=ON -DMHLA_BUILD_TESTS=ON
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset release -j $(JOBS)

asan: setup
	@cmake --preset asan $(CONFIGURE) -DMHLA_BUILD_PROGRAM=ON -DMHLA_BUILD_TESTS=ON
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS)

fuzz:
	@MHLA_PYTHON=$(MHLA_PYTHON) scripts/setup --all
	@scripts/fuzz $(SECONDS_EACH)

emulate:
	@JOBS=$(JOBS) scripts/emulate-cuda few
	@JOBS=$(JOBS) EMULATED_CAPABILITY=86 scripts/emulate-cuda lean
	@JOBS=$(JOBS) OUT_DIR=build/emulation-lanes EMULATED_FLAGS=-DMHLA_EVERY_LANE_ARRIVES \
	  scripts/emulate-cuda columns -- "sequence=300 block=64 batch=3 heads=2 dk=80 dv=100 mask=causal normalizer=none dtype=bf16"

cuda: setup
	@cmake --preset cuda $(CONFIGURE)
	@cmake --build --preset cuda -j $(JOBS)

lint: build
	@MHLA_PYTHON=$(MHLA_PYTHON) scripts/setup --all
	@scripts/lint

format: setup
	@scripts/format

clean:
	rm -rf build out
