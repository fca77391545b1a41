"""Proof of quality and speed of a running server: scripts run, judged, compared and shown.

The scripts in bench/ measure over HTTP; this package runs them, captures what the machine did
meanwhile, and turns the numbers into a verdict, a file and a report. It never loads a model.
"""
