"""Theory, claims and figures of each paper, side by side; the audit and the figures over all of them.

Nothing outside imports it but the command line, the page, and the public names of the package.
"""
