"""The programs that workers run, each `python -m onceflow.verify.programs.NAME SETTINGS`. `life.py` is what they
share."""
