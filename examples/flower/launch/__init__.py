"""Flower gets the devices of a FedASMU run onto its nodes."""
