"""``python -m burnish``."""

import sys

from burnish.cli.main import main

sys.exit(main())
