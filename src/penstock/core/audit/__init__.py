"""The audit log: who did what from where, with which result. The door, the checks of the lanes and the authenticator call it, and nobody else."""
