"""The exporter's pages for people: the table of all backends, and each backend with its evidence."""
