"""One file per peer of compare.py; `python -m peers.NAME TASK`, in the folder above, does what stdin says."""
