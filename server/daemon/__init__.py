"""The daemon: listeners, dispatch, spool and the supervision of runs."""
