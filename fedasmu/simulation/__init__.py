"""The virtual-clock driver: the same server and sessions as on a real fleet, in an order that the seed decides."""
