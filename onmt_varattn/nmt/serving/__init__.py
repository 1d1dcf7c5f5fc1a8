"""Translation over HTTP: OpenNMT's routes and JSON, with every request checked before a model sees it."""
