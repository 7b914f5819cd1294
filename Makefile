# Aliases of scripts/dev.py, where everything happens: make test ARGS="--on postgresql -k lock"

.PHONY: demo serve test bench chaos lint docs

demo serve test bench chaos lint docs:
	@python3 scripts/dev.py $@ $(ARGS)
