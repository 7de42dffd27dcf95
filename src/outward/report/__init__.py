"""Reports: a run -> numbers per layer, a reading in words, tables, figures, one page. No torch.

summary.py    what a run says, as one JSON document
reading.py    what it means, in sentences made from the numbers
compare.py    runs side by side: differences with intervals
terminal.py   tables for a terminal
frames.py     rows that figures are drawn from
figures.py    rows -> charts
story.py      which figures a report has, with their captions
drawing.py    charts -> SVG, PNG, PDF
tables.py     rows as HTML and CSV
page.py       the one HTML file; page.css is its looks
visible.py    text from outside as text that can only be read
"""
