"""The book: README, guides, notebooks with their stored outputs, and the API, as pages that need no network.

``python -m tools.book`` builds and checks it; ``docs/conf.py`` configures Sphinx.
"""
