"""`python -m turnwise` is the `turnwise` command."""

import sys

from turnwise.cli import main

sys.exit(main())
