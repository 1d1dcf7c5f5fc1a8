"""The first signal is noted, the second would end the process; outside its block nothing is changed."""

import os
import signal
import threading

from onmt_varattn.training.processes import StopRequest


def test_a_signal_is_noted_and_handlers_come_back(capfd):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest() as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert (
        capfd.readouterr().err == "SIGTERM: finishing the step and saving it; a second one leaves at once\n"
    )


def test_only_the_first_process_speaks(capfd):
    with StopRequest(announce=False) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
    assert capfd.readouterr().err == ""


def test_training_in_a_thread_leaves_signals_alone():
    found = []

    def work():
        with StopRequest() as stop:
            found.append((stop.signal, signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(0, before)]
