"""Write one HTML page per module from its docstrings: `api_docs.py FOLDER`."""

import os
from pathlib import Path
import pkgutil
import pydoc
import sys

import dlnn_ros


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    names = [m.name for m in pkgutil.walk_packages(dlnn_ros.__path__, 'dlnn_ros.')]
    for name in ['dlnn_ros', *names]:
        pydoc.writedoc(name)
    missing = [n for n in names if not Path(f'{n}.html').exists()]
    if missing:
        print(f'no page for {", ".join(missing)}', file=sys.stderr)
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
