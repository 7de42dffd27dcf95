"""The explorer: a local page of runs, layers and heads, and of a model that is asked live.

runs.py      finds runs, gives each an id; the list; one run; one head
safety.py    Host, token, Origin, size and headers of all that is asked and answered
server.py    the routes, and serving them
live.py      a model that is loaded: one text or picture at a time
matrices.py  one head of one call: who attends to whom, and how alike what comes of it is
pictures.py  bytes become a picture, and the model's tokens a grid on it
notebook.py  the same views as a widget
static/      the page

Only live.py, matrices.py and pictures.py need torch, and are imported where there is a model.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outward.run import Run


def widget(run: "Run", series: str = "main") -> Any:
    """The run as a widget of a notebook: what the page shows of it, without a server."""
    from outward.explorer.notebook import run_widget

    return run_widget(run, series)
