"""Reports: run folders, read as streams and drawn as one HTML page."""
