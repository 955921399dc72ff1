"""``python -m tikemu``."""

import sys

if __name__ == "__main__":
    try:
        from .cli import main

        status = main()
    except KeyboardInterrupt:  # while the modules were imported
        print("tikemu: interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
