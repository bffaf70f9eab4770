"""The links of one client: constant rates, traces, or radio links."""

from dataclasses import replace
from typing import NamedTuple

from gossamer.core.random import Key
from gossamer.fleet.device import Device
from gossamer.fleet.links import FixedRate, Transfer
from gossamer.fleet.radio import Fading, outage, rate


class Terminal(NamedTuple):
    """The device and the links of one client.

    Args:
        device: the device
        up: the uplink
        loss: the probability that an upload is lost
        power: the watts of sending
        down: the downlink; none if downloads are free
    """

    device: Device
    up: Transfer
    loss: float
    power: float
    down: Transfer | None


def connect(device: Device, key: Key, fading: Fading = "power", power: float | None = None) -> Terminal:
    """Return the links of a client. Ranges are drawn with the key; ``power`` replaces that of a radio link."""
    up, down = device.rate(True, key), device.rate(False, key)
    if up is not None:
        return Terminal(device, up, device.loss, device.sending_power(key), down)
    radio = device.link(key, fading)
    if down is None and (below := device.downlink(radio)) is not None:
        down = FixedRate(rate(below))
    link = radio if power is None else replace(radio, power=power)
    return Terminal(device, FixedRate(rate(link)), outage(link), link.power, down)
