"""The `dlnn` command line, one file per sub-command."""
