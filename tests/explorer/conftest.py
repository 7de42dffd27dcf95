from browser import chromium

__all__ = ["chromium"]
