"""Environments that somebody else wrote, of Gymnasium and PettingZoo, stepped in processes of their own."""
