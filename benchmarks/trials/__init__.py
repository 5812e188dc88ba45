"""What `benchmarks/network.py` tries on a real server process: crashes, load, attacks, faults, wrong clocks."""
