"""The parts that methods are made of, one per file.

Views, solvers, codecs, servers, channels, samplers, parametrizations.
"""
