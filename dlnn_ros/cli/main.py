"""Entry point of the `dlnn` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import importlib
import json
import os
import signal
import sys

COMMANDS = ('demo', 'data', 'train', 'evaluate', 'info', 'bench')


def make_parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser; each name is a module of this package with HELP, configure and run."""
    parser = argparse.ArgumentParser(
        prog='dlnn', description='Learned, passive feed-forward torque for robots.'
    )
    subparsers = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name in commands:
        module = importlib.import_module(f'dlnn_ros.cli.{name}')
        sub = subparsers.add_parser(name, help=module.HELP, description=module.__doc__)
        module.configure(sub)
        if sub.get_default('run') is None:
            sub.set_defaults(run=module.run)
            add_json(sub)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the --json flag that every command has."""
    parser.add_argument(
        '--json', action='store_true', help='print one JSON result on stdout, nothing else'
    )


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    Returns
    -------
    int
        0 on success, 1 where the command says so, 2 on a user's mistake, 130 after Ctrl-C,
        143 after SIGTERM.

    """
    args = make_parser().parse_args(argv)
    # As an exception it lets a command end its node processes and remove what is half-written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        result = args.run(args)
    except KeyboardInterrupt:
        print('dlnn: interrupted', file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError, TimeoutError) as error:
        if os.environ.get('DLNN_DEBUG'):
            raise
        message = ' '.join(str(error).split()) or type(error).__name__
        print(f'dlnn {args.command}: error: {message}', file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(result.data))
    elif result.text:
        print(result.text)
    return result.exit_code


if __name__ == '__main__':
    sys.exit(main())
