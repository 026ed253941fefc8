"""The notebooks' side: figures, panels, live runs, headless notebooks, reports."""
