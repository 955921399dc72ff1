"""Test the checks of numbers that every call of several threads shares."""

import sys
import threading

from flash_attention.call_cells import NumberCheck


class Numbers:
    def asnumpy(self):
        return None


def test_threads_share_a_check_of_numbers():
    check, errors = NumberCheck(lambda *numbers: None), []

    def call():
        try:
            for _ in range(2000):
                check(Numbers(), None)
        except RuntimeError as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
