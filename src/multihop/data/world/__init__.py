"""The demo world: a seeded, fictional corpus with multi-hop questions in the official formats.

``build_world`` draws a graph of typed facts and writes it up as short passages; ``write_raw``
asks questions of that graph and writes them as HotpotQA, 2WikiMultiHopQA or MuSiQue files.
"""

from multihop.data.world.asked import Asked, Step
from multihop.data.world.formats import draw_questions, write_raw
from multihop.data.world.model import World, build_world

__all__ = ["Asked", "Step", "World", "build_world", "draw_questions", "write_raw"]
