# Thin names for scripts/. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: setup build demo test test-full bench format format-check asan tsan fuzz tidy clean help

setup:         ## install what is missing (Debian packages)
	@scripts/setup.sh --dev
build:         ## build everything (preset cpu, in build/cpu)
	@scripts/setup.sh
	@scripts/build.sh cpu
demo:          ## from a fresh checkout to one action chunk
	@scripts/demo.sh
test:          ## build and run the tests, without the slow ones
	@scripts/test.sh
test-full:     ## every test; the full-size models need minutes and 10 GB
	@scripts/test.sh --full
bench:         ## measure whole inferences (options: ARGS="--iters 5 --horizon 50")
	@scripts/bench.sh $(ARGS)
format:        ## rewrite the sources with clang-format
	@scripts/format.sh
format-check:  ## fail when `make format` would change something
	@scripts/format.sh --check
asan:          ## all but the slow tests under ASan and UBSan
	@scripts/asan.sh
tsan:          ## server, queue, client and upload tests under ThreadSanitizer
	@scripts/tsan.sh
fuzz:          ## fuzz the parsers, each (SECONDS=60)
	@scripts/fuzz.sh $(or $(SECONDS),60)
tidy:          ## clang-tidy over the sources
	@scripts/tidy.sh
clean:         ## remove build/
	@rm -rf build
help:          ## this list
	@sed -n 's/^\([a-z-]*\): *## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
