"""The parts that methods are made of, one per file.

Views, solvers, codecs, downlinks, servers, channels, samplers, parametrizations.
"""
