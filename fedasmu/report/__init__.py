"""What people look at: summaries, tables and pictures, all computed from run directories."""
