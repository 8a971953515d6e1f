"""A discrete-event simulator that runs the policies of `placement`, `pools` and `scheduling` without machines."""
