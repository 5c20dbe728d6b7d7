"""Other queues, each in its own module, and the programs that install and measure them: `python -m benchmarks.peers`.

Every module runs the same jobs (`benchmarks.probe`) with the tool's own worker. Settings are the tool's defaults except
where its module says why not; what can make a job survive its worker is switched on.
Never here: onefold's own speed goals; those are rows of `benchmarks.harness`.
"""
