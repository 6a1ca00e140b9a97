"""``python -m pagedattn`` is the command ``pagedattn``."""

import sys

from .cli import main

sys.exit(main())
