"""`python -m onefold` is `onefold`.

For machines where the script is not on the PATH. Nothing else lives here.
Private: may change with any release.
"""

from onefold.cli.main import main

if __name__ == "__main__":
    main()
