"""`python -m onefold` does the same as `onefold`.

It is for machines where the script is not on the PATH. Nothing else is in this module.
Private: may change with any release.
"""

from onefold.cli.main import main

if __name__ == "__main__":
    main()
