"""Building blocks of reports: figures as text, HTML pages in one file, plots as SVG. Standard library only."""
