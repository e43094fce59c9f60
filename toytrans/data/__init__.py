"""Data: from a config to padded batches."""
