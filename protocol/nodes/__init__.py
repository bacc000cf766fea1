"""The nodes: broker, controller, recovery manager and client, each behind the contract."""
