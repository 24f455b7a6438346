"""What a rendered page must not do: run anything, send anything, or load anything from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_LOADS = {"src", "href", "data", "srcset", "poster", "background", "xlink:href"}
_ACTIVE = {"script", "iframe", "object", "embed", "form", "base", "frame", "applet"}
_ELSEWHERE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_RUNS = re.compile(r"\s*(?:javascript|vbscript|data\s*:\s*text/html)\s*:?", re.IGNORECASE)
_STYLE = re.compile(
    r"""@import[^;]*//[^;]*|url\(\s*["']?\s*(?:https?:)?//[^)]*\)|expression\(|url\(\s*["']?\s*javascript:""",
    re.IGNORECASE,
)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        if tag in _ACTIVE:
            self.problems.append(f"<{tag}>" + "".join(f" {v}" for _, v in attrs if v))
        for name, value in attrs:
            # Browsers drop control characters from an address before they read it.
            text = re.sub(r"[\x00-\x1f]", "", value or "")
            loads = name in _LOADS and not (tag == "a" and name == "href")
            wrong = (
                name.startswith("on")
                or (name in _LOADS and _RUNS.match(text))
                or (loads and _ELSEWHERE.match(text))
                or (name == "style" and _STYLE.search(text))
                or (tag == "meta" and name == "http-equiv" and text.lower() == "refresh")
            )
            if wrong:
                self.problems.append(f'<{tag} {name}="{text}">')

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style and (found := _STYLE.search(data)):
            self.problems.append(found[0])


def problems(page: str) -> list[str]:
    """Every element or attribute of an HTML page that would run, send or load something; text is never one."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.problems
