"""Byte-pair encoding (Sennrich et al., 2016): words as pieces that training has seen often.

A word begins as its characters, the last of which has a blank behind it: no word holds a blank, so
that pieces side by side are a text again. The commonest pair of neighbours becomes one piece,
again and again.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Iterable, Mapping

Merge = tuple[str, str]


def learn(counts: Mapping[str, int], merges: int) -> list[Merge]:
    """The pairs of pieces that become one, in the order in which they do.

    Of pairs that are equally common the first by the alphabet comes first. There are fewer merges
    than asked for if no pair is left that is there twice.

    >>> learn({"low": 5, "lower": 2, "lot": 1}, 3)
    [('l', 'o'), ('lo', 'w '), ('e', 'r ')]

    Args:
      counts: how often each word is there.
      merges: how many.
    """
    words = [_characters(word) for word in counts]
    weights = list(counts.values())
    totals: collections.Counter[Merge] = collections.Counter()
    places: dict[Merge, set[int]] = collections.defaultdict(set)
    for number, pieces in enumerate(words):
        for pair in itertools.pairwise(pieces):
            totals[pair] += weights[number]
            places[pair].add(number)
    # What is said of a pair whose total has changed since stays in the queue, and is passed over.
    queue = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(queue)
    found: list[Merge] = []
    while queue and len(found) < merges:
        total, best = heapq.heappop(queue)
        if -total != totals[best]:
            continue
        if -total < 2:
            break
        found.append(best)
        changes: collections.Counter[Merge] = collections.Counter()
        for number in places.pop(best):
            before, weight = words[number], weights[number]
            after = _merged(before, best)
            if len(after) == len(before):  # an earlier merge has taken the pair apart
                continue
            words[number] = after
            for pair in itertools.pairwise(before):
                changes[pair] -= weight
            for pair in itertools.pairwise(after):
                changes[pair] += weight
                if best[0] + best[1] in pair:
                    places[pair].add(number)
        for pair, change in changes.items():
            totals[pair] += change
            if change and totals[pair] > 0:
                heapq.heappush(queue, (-totals[pair], pair))
    return found


def split(word: str, ranks: Mapping[Merge, int]) -> list[str]:
    """The pieces of a word: the earliest merge that fits, again and again.

    >>> split("lowest", {("l", "o"): 0, ("lo", "w"): 1, ("s", "t "): 2})
    ['low', 'e', 'st ']

    Args:
      word: without blanks.
      ranks: the place of every merge.
    """
    pieces = _characters(word)
    while len(pieces) > 1:
        best = min(itertools.pairwise(pieces), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        pieces = _merged(pieces, best)
    return pieces


def joined(pieces: Iterable[str]) -> str:
    """The text that pieces are, its words divided by one blank.

    >>> joined(["low", "e", "st ", "of ", "a", "ll "])
    'lowest of all'
    """
    return "".join(pieces).strip()


def _characters(word: str) -> list[str]:
    return [*word[:-1], word[-1] + " "]


def _merged(pieces: list[str], pair: Merge) -> list[str]:
    found, place, last = [], 0, len(pieces) - 1
    while place <= last:
        if place < last and pieces[place] == pair[0] and pieces[place + 1] == pair[1]:
            found.append(pair[0] + pair[1])
            place += 2
        else:
            found.append(pieces[place])
            place += 1
    return found
