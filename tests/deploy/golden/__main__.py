"""Renews the golden files, see the package."""

from tests.deploy.golden import renew

renew()
