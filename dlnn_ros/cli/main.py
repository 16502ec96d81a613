"""Entry point of the `dlnn` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import importlib
import json
import os
import signal
import sys

# What a command raises where the user can do something about it.
MISTAKES = (ValueError, TypeError, OSError, ImportError, TimeoutError)

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
        0 on success, 1 where the command says so, 2 on a user's mistake, 70 on an error of
        this program, 130 after Ctrl-C, 129 or 143 after SIGHUP or SIGTERM.

    """
    # As exceptions they let a command end its node processes and remove what is half-written.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    command = ''
    try:
        args = make_parser().parse_args(argv)
        command = f' {args.command}'
        result = args.run(args)
    except KeyboardInterrupt:
        print('dlnn: interrupted', file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get('DLNN_DEBUG'):
            raise
        message = ' '.join(str(error).split())
        if isinstance(error, MISTAKES):
            print(f'dlnn{command}: error: {message or type(error).__name__}', file=sys.stderr)
            return 2
        print(
            f'dlnn{command}: failed: {type(error).__name__}: {message} (DLNN_DEBUG=1 shows where)',
            file=sys.stderr,
        )
        return 70
    if args.json:
        print(json.dumps(result.data))
    elif result.text:
        print(result.text)
    return result.exit_code


if __name__ == '__main__':
    sys.exit(main())
