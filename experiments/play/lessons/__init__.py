"""The guided lessons of `isray play`: a file each, and in `answers` a scenario that fulfils each of them."""
