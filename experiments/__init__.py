"""Everything that uses clusters; docs/architecture.md lists the packages, floor by floor."""
