"""The page of a report, in pieces.

`template.html`, `page.css` and `timeline.js` are put together by `onceflow.verify.report`; `timeline.py` makes the data
that the script draws, `sections.py` and `mini.py` the HTML. Whatever comes from a run may come from strangers (anybody
can write to a topic): it goes through `markup.text` into HTML, and through `markup.script_json` into the script's data.
"""
