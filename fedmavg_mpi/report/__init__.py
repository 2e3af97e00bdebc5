"""Figures and pages made from run files."""
