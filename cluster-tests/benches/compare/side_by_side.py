"""One case on one system after another, so that a machine that is busy with something else is busy for all of them."""

from processes import say
from systems import Mosquitto, Quorumq, Rumqttd

OURS = "quorumq"


def measure(systems, arguments):
    """Starts each system afresh and runs the case on it. What each found, by name; nothing where it failed.

    `systems` maps a name to what makes the system; `arguments` is what the load generator gets, or a function that
    takes the name and returns it.
    """
    found = {}
    for name, make in systems.items():
        try:
            with make() as system:
                (found[name],) = system.bench(*(arguments(name) if callable(arguments) else arguments))
        except RuntimeError as error:
            say(f"{name}: {error}")
    return found


def values(found, *path):
    """One value out of what each system found; no value where it is missing."""
    def value(result):
        for key in path:
            result = result.get(key) if result else None
        return result

    picked = {name: value(result) for name, result in found.items()}
    return picked.pop(OURS, None), picked


def plain_brokers(options):
    """One node, and each plain broker that is there."""
    systems = {OURS: lambda: Quorumq(options, 1)}
    if options.mosquitto:
        systems["mosquitto"] = lambda: Mosquitto(options)
    if options.rumqttd:
        systems["rumqttd"] = lambda: Rumqttd(options)
    return systems
