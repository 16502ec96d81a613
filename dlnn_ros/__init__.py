"""Learned, passive inverse-dynamics feed-forward for ROS 2."""

__version__ = '0.1.0'
