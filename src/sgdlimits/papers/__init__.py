"""Theory, claims and figures of each paper, with the audit of the claims and the index of the figures.

Only the command line, the explorer and the package's `__init__` import this folder.
"""
