"""The explorer: a local page on which runs are watched. It shows what `stream` yields and has no simulation of its own."""
