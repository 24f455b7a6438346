"""Attacks as somebody might write them into a passage, a question, a file or a model's answer."""

from __future__ import annotations

DEEP = "[" * 100_000
HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)><a href='javascript:alert(1)'>x</a>",
    "attribute": "\" onmouseover=\"alert(1)\" x='</td></table><svg/onload=alert(1)>",
    "markdown": "[x](javascript:alert(1)) ![y](http://192.0.2.1/y.png)",
    "remote": "@import 'http://192.0.2.1/x.css'; url(//192.0.2.1/y)",
    "tex": "$\\frac{1}$ $\\input{/etc/passwd}$ \\write18{touch TOUCHED} $$",
    "ansi": "\x1b[2J\x1b]0;title\x07\x1b[31mred\x9b1A\r\x08\x7f",
    "braces": "{0.__class__.__mro__} {question.__init__.__globals__} {} {{ {% raw %} %s %(x)s %n",
    "path": "../../../../etc/passwd\x00.txt",
    "shell": "$(touch TOUCHED) `touch TOUCHED`; touch TOUCHED | touch TOUCHED && touch TOUCHED",
    "sql": "'; DROP TABLE responses; --",
    "pickle": "cos\nsystem\n(S'touch TOUCHED'\ntR.",
    "python": "__import__('os').system('touch TOUCHED')",
    "formula": "=cmd|'/C touch TOUCHED'!A0",
    "bidi": "abc\u202egnp.exe\u2066 \u200f\u2028line",
    "nul": "a\x00b",
    "surrogate": "half \ud83d of an emoji",
    "yaml": "!!python/object/apply:os.system ['touch TOUCHED']",
}
