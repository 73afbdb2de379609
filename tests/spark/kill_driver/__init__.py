"""Drivers that are killed: programs of their own, because what dies takes its session along."""
