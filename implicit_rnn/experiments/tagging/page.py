"""Tagged sentences as a page to read: under every word its tag, above it an arrow.

Figures 3 and 4 of the 2017 paper for a whole text: an arrow points to the neighbour that a word
listens to, back or ahead, and is as long as the switch is decided, in the mean over all channels.
The stripe below is the channels themselves, sorted.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from implicit_rnn.experiments.tagging.use import Tagged, require_switch

_PAST, _BOTH, _FUTURE = (179, 88, 6), (247, 247, 247), (84, 39, 136)  # as in `plots.listening`
_PARTS = 24  # of a stripe

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
  body {{ font-family: system-ui, sans-serif; color: #333; background: #fff; max-width: 64rem;
         margin: 2rem auto; padding: 0 1rem; }}
  h1 {{ font-size: 1.3rem; font-weight: 600; }}
  p {{ color: #666; line-height: 1.5; }}
  .past {{ color: rgb{past}; font-weight: 600; }}
  .future {{ color: rgb{future}; font-weight: 600; }}
  .sentence {{ display: flex; flex-wrap: wrap; gap: .9rem .35rem; margin: 2rem 0; }}
  .token {{ min-width: 3.6rem; text-align: center; }}
  .token svg {{ display: block; width: 3.6rem; height: 1rem; margin: 0 auto; }}
  .word {{ display: block; font-size: 1.15rem; padding: 0 .2rem; }}
  .unknown {{ text-decoration: underline dotted #999; text-underline-offset: .25em; }}
  .tag {{ display: block; font-size: .75rem; color: #777; }}
  .channels {{ height: .4rem; margin: .25rem .2rem 0; border-radius: .2rem; }}
</style>
<h1>{title}</h1>
<p>An arrow to the left: the word listens to the <span class="past">word before</span> it; to the
right: to the <span class="future">word after</span>. It is the longer, the further the mean of all
channels is from an even share; the longest is a share of {longest:.0%}. The stripe is the channels
one by one, sorted. <span class="unknown">Dotted</span> words are not in the vocabulary.</p>
"""


def write_page(
    sentences: Sequence[Tagged], path: Path, title: str = "Where each word looks"
) -> Path:
    """Writes an HTML file that needs no other.

    Args:
      sentences: as `tagged.tag` gives them, by a network that has a switch.
      path: the file; its folder is made.
      title: above the page.
    """
    means = [require_switch(sentence).mean(axis=1) for sentence in sentences]
    reach = max(0.05, *(float(np.max(np.abs(mean - 0.5), initial=0)) for mean in means))
    parts = [
        _HEAD.format(title=html.escape(title), past=_PAST, future=_FUTURE, longest=0.5 + reach)
    ]
    for sentence, mean in zip(sentences, means, strict=True):
        tokens = [_token(sentence, number, mean[number], reach) for number in range(len(mean))]
        parts.append(f'<div class="sentence">\n{"".join(tokens)}</div>\n')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(parts), "utf-8")
    return path


def _token(sentence: Tagged, number: int, mean: float, reach: float) -> str:
    word, tag = html.escape(sentence.words[number]), html.escape(sentence.tags[number])
    unknown = bool(sentence.unknown[number])
    shares = np.quantile(require_switch(sentence)[number], np.linspace(1, 0, _PARTS))
    stops = [
        f"{_colour(share)} {100 * part / _PARTS:.1f}% {100 * (part + 1) / _PARTS:.1f}%"
        for part, share in enumerate(shares)
    ]
    said = f"{word}: {tag}, {mean:.0%} of the past" + (", unknown word" if unknown else "")
    return (
        f'<div class="token" title="{said}">{_arrow(mean, reach)}'
        f'<span class="word{" unknown" if unknown else ""}">{word}</span>'
        f'<span class="tag">{tag}</span><div class="channels" '
        f'style="background: linear-gradient(to right, {", ".join(stops)})"></div></div>\n'
    )


def _arrow(mean: float, reach: float) -> str:
    """From the middle to the left for the past, to the right for the future."""
    long = -40 * (mean - 0.5) / reach
    tip, head = 50 + long, np.sign(long) * min(abs(long), 9)
    colour = _colour(1.0 if mean > 0.5 else 0.0)
    return (
        f'<svg viewBox="0 0 100 28"><circle cx="50" cy="14" r="3" fill="#bbb"/>'
        f'<path d="M50 14 H{tip:.1f} M{tip - head:.1f} 7 L{tip:.1f} 14 L{tip - head:.1f} 21" '
        f'fill="none" stroke="{colour}" stroke-width="5" stroke-linecap="round"/></svg>'
    )


def _colour(share: float) -> str:
    """Of a share of the past: violet at 0, white at a half, orange at 1."""
    end = _PAST if share > 0.5 else _FUTURE
    depth = 2 * abs(share - 0.5)
    mixed = [round(b + depth * (e - b)) for b, e in zip(_BOTH, end, strict=True)]
    return f"rgb({', '.join(map(str, mixed))})"
