"""The output of a run: runlog writes a run folder, metrics reads it, plots draws it, progress displays a running one.

evaluation reports on results files. Nothing in this package knows the model, and nothing is imported here, so a command
loads only what it uses.
"""
