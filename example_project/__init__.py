"""A small prediction market that uses leasejobs as a project would."""
