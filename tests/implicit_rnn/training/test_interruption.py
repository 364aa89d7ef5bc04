"""Signals that ask a run to end."""

from __future__ import annotations

import signal

import pytest

from implicit_rnn.training.interruption import SIGNALS, interruption


@pytest.mark.parametrize("number", SIGNALS)
def test_a_first_signal_is_noted_and_a_second_one_ends_a_run(number: signal.Signals):
    before = [signal.getsignal(each) for each in SIGNALS]
    with interruption() as found:
        signal.raise_signal(number)
        assert found.asked == number
        with pytest.raises(KeyboardInterrupt) as ended:
            signal.raise_signal(number)
    assert ended.value.args == (number,)
    assert [signal.getsignal(each) for each in SIGNALS] == before
