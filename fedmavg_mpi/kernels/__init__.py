"""Compiled loops. Nothing outside this folder is compiled, and nothing in it validates."""
