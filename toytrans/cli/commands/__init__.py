"""The options and the help of each command, apart from what it does: a command line is read before
the module of its command, and torch with it, is imported."""
