"""What keeps the data of generation `v3`: the store, the layout of its data, and the side of its clients."""
