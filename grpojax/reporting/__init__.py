"""What a run leaves behind and what is shown of it: the run folder, its curves, its pictures, the progress display.

runlog writes a run folder, metrics reads one (or any metrics csv), plots draws it, progress shows a run under way.
This room sees records, numbers and files, never a model. Nothing is imported here: a command pays for what it uses.
"""
