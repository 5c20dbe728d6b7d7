"""Programs that maintain this repository; no part of the package. The Makefile runs them."""
