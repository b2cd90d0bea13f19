"""`python -m camri` is the command line."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] == os.getcwd():
        del sys.path[0]  # Python puts it there for -m; a pickle.py beside the data would be executed
    from camri.cli import main

    main()
