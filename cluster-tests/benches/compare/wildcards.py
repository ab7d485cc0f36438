"""Publishes matched against many subscriptions with wildcards, one node beside Mosquitto and rumqttd."""

from side_by_side import measure, plain_brokers, values

FILTERS = 10_000
# rumqttd compares a topic that is new to it with every filter, and remembers what matched: a minute and more for as many topics.
WARM_UP = {"rumqttd": 90}


def wildcard_figures(options, table):
    for qos in (0, 1):
        def command(name):
            warm_up = ["--warmup", WARM_UP[name]] if name in WARM_UP else []
            return [
                "mqtt", "-q", qos, "-t", "wildcards", "--filters", FILTERS, "-P", 8, "-S", 100, "--lag", 100,
                "--protocol", "3.1.1", "-d", options.seconds, *warm_up,
            ]

        found = measure(plain_brokers(options), command)
        table.beside(f"QoS {qos}, one of {FILTERS:,} wildcard filters matches", *values(found, "per_second"), "/s")
        table.beside("  CPU per message", *values(found, "server_cpu_us"), "µs", at_most=True)
