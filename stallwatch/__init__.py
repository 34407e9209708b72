"""What both programs share: bounded HTTP, strict settings, logs, serving. It decides nothing."""

__version__ = "0.1.0"
