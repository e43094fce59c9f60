"""The config of a run: a YAML file, `--set` or a dict -> `schema.Config`."""
