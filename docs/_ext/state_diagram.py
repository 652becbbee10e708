"""The directive `{state-diagram}`: inline SVG drawn from `leasejobs.states.TRANSITIONS`.

`life` draws what workers do to a job, without the arrows to cancelled; `verbs` draws every verb as
a row. An arrow of the table for which `life` has no path is an error, so the build fails rather
than show an old picture.
"""

from collections import defaultdict
from collections.abc import Iterator
from html import escape

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from leasejobs.states import TRANSITIONS, State

WIDTH, HEIGHT = 112, 34
# Centres of the boxes.
PLACES = {
    State.SCHEDULED: (80, 60),
    State.RETRYABLE: (80, 300),
    State.PENDING: (290, 180),
    State.RUNNING: (560, 180),
    State.SUCCEEDED: (820, 60),
    State.FAILED: (820, 180),
    State.PARKED: (820, 300),
}
# (from, to) -> path, where its verbs are written, and how that text is anchored.
PATHS = {
    (State.SCHEDULED, State.PENDING): ("M104 77 L254 162", (186, 112), "start"),
    (State.PENDING, State.SCHEDULED): ("M234 174 C180 160 96 130 74 78", (128, 152), "end"),
    (State.RETRYABLE, State.PENDING): ("M104 283 L254 198", (186, 258), "start"),
    (State.PENDING, State.RUNNING): ("M346 174 L503 174", (424, 167), "middle"),
    (State.RUNNING, State.PENDING): ("M504 188 C450 212 400 212 347 189", (424, 226), "middle"),
    (State.RUNNING, State.SCHEDULED): ("M540 163 C500 50 320 30 137 50", (350, 40), "middle"),
    (State.RUNNING, State.RETRYABLE): ("M540 197 C500 310 320 330 137 310", (350, 336), "middle"),
    (State.RUNNING, State.SUCCEEDED): ("M600 163 L763 72", (672, 108), "end"),
    (State.RUNNING, State.FAILED): ("M616 180 L763 180", (690, 173), "middle"),
    (State.RUNNING, State.PARKED): ("M600 197 L763 288", (668, 230), "start"),
}
# What operators and deadlines do joins nearly every pair: only `verbs` shows it.
LEFT_OUT_VERBS = {"expire", "cancel", "retry", "park"}
LEFT_OUT_STATES = {State.CANCELLED}


def arrows() -> dict[tuple[State, State], list[str]]:
    """Return the verbs that `life` writes at each pair of states, in the order of the table."""
    found: dict[tuple[State, State], list[str]] = defaultdict(list)
    for verb, (sources, targets) in TRANSITIONS.items():
        for source in () if verb in LEFT_OUT_VERBS else sorted(sources):
            for target in sorted(targets - LEFT_OUT_STATES):
                found[source, target].append(verb)
    return dict(found)


def life() -> str:
    """Return the picture of a job's life."""
    drawn = arrows()
    if missing := drawn.keys() - PATHS.keys():
        raise ValueError(f"no path is laid for {sorted(missing)}")
    parts = [_head(890, 350, "States of a job and the verbs between them")]
    for pair, verbs in drawn.items():
        path, (x, y), anchor = PATHS[pair]
        parts.append(f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>')
        parts.append(_text(x, y, ", ".join(verbs), "verb", anchor))
    parts.extend(_box(x, y, state) for state, (x, y) in PLACES.items())
    return "".join([*parts, "</svg>"])


def verbs() -> str:
    """Return the picture of every verb: a row with an arrow to each state it may lead to."""
    left, column, row, top = 120, 98, 30, 46
    xs = {state: left + column // 2 + column * index for index, state in enumerate(State)}
    bottom = top + row * len(TRANSITIONS)
    parts = [_head(left + column * len(State), bottom + 10, "Every verb and the states it joins")]
    for state, x in xs.items():
        parts.append(f'<line class="state-line" x1="{x}" y1="{top - 10}" x2="{x}" y2="{bottom}"/>')
        parts.append(_text(x, top - 18, _name(state), "state", "middle"))
    for index, (verb, (sources, targets)) in enumerate(TRANSITIONS.items()):
        y = top + row * index + row // 2
        parts.append(_text(left - 12, y + 4, verb, "verb", "end"))
        parts.extend(_row(y, [xs[state] for state in sources], [xs[state] for state in targets]))
    return "".join([*parts, "</svg>"])


def _row(y: int, sources: list[int], targets: list[int]) -> Iterator[str]:
    for target in targets:
        for source in sources:
            end = target - 12 if source < target else target + 12
            yield f'<path class="arrow" d="M{source} {y} L{end} {y}" marker-end="url(#tip)"/>'
        yield f'<circle class="target" cx="{target}" cy="{y}" r="6"/>'
    for source in sources:
        yield f'<circle class="source" cx="{source}" cy="{y}" r="5"/>'


def _head(width: int, height: int, title: str) -> str:
    return (
        f'<svg class="states" role="img" viewBox="0 -16 {width} {height + 16}"'
        f' xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
        ' markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z"/></marker>'
        "</defs>"
    )


def _box(x: int, y: int, state: State) -> str:
    return (
        f'<rect class="box" x="{x - WIDTH / 2}" y="{y - HEIGHT / 2}" width="{WIDTH}"'
        f' height="{HEIGHT}" rx="8"/>' + _text(x, y + 5, _name(state), "state", "middle")
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _name(state: State) -> str:
    return state.name.lower()


class StateDiagram(Directive):
    """Put one of the pictures on the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the SVG as raw HTML."""
        kind = directives.choice(self.arguments[0], ("life", "verbs"))
        picture = life() if kind == "life" else verbs()
        return [nodes.raw("", f'<div class="picture">{picture}</div>', format="html")]


def setup(app):
    """Register the directive."""
    app.add_directive("state-diagram", StateDiagram)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
