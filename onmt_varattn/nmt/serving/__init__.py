"""Translation over HTTP with OpenNMT-py's routes and JSON; requests are checked before a model is used."""
