"""Measurements, side by side in one run: quote the ratios and medians, not the single figures."""

from __future__ import annotations
