"""Figures, one file each: they compose the package's verbs and write into the folder they are given."""
