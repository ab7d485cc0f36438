"""What rules cost a message: the same run without rules and with fifty, each on a node of its own that is started for it.

Rounds alternate, and the ratio is the median of theirs. Two runs of the same differ by more than rules cost, in their rates
more than in the processor time of a message: so the goal is one of that.
"""

import json
import subprocess
from statistics import median

from systems import Quorumq

RULES = 50
ROUNDS = 7
MOST = 1.03


def document():
    """Rules of which the last one is what the run's clients may do, behind denials and rules of others."""
    connect = {"broker_resources": [{"method": "connect"}]}
    deny = {"effect": "deny", "broker_resources": [
        {"method": "publish", "topics": ["+/secret/#"]}, {"method": "subscribe", "topics": ["+/secret/#"]}]}
    others = [
        {"principals": {"groups": [f"group-{number}"]} if number % 2 else {"client_ids": [f"device-{number}-*"]},
         "broker_resources": [
             {"method": "publish", "topics": [f"site/{number}/{{principal.client_id}}/#", f"line/+/{number}"], "max_qos": 1},
             {"method": "subscribe", "topics": [f"site/{number}/#"]}]}
        for number in range(RULES - 3)
    ]
    own = {"broker_resources": [{"method": "publish", "topics": ["bench/#"]}, {"method": "subscribe", "topics": ["bench/#"]}]}
    return json.dumps({"default": "deny", "rules": [connect, deny, *others, own]})


def run(options, has_rules):
    """What a node that is started for it finds, by QoS."""
    with Quorumq(options, 1) as ours:
        if has_rules:
            command = [options.bin, "acl", "--http", f"127.0.0.1:{ours.http[0]}", "set", "-"]
            subprocess.run(command, input=document(), text=True, check=True, capture_output=True)
        return ours.bench("mqtt", "-q", "0,1", "--protocol", "3.1.1", "-d", options.seconds)


def rule_figures(options, table):
    rounds = []
    for number in range(ROUNDS):
        # Who is first changes, too.
        order = (False, True) if number % 2 else (True, False)
        found = {has_rules: run(options, has_rules) for has_rules in order}
        rounds.append((found[True], found[False]))
    for qos in (0, 1):
        with_rules, without = (
            [found[qos] for found in column] for column in zip(*rounds)
        )
        for key, figure, unit in (
            ("per_second", f"messages/s, QoS {qos}, 8 → 8, {RULES} rules", "/s"),
            ("server_cpu_us", "  CPU per message", "µs"),
        ):
            ratio = median(mine[key] / other[key] for mine, other in zip(with_rules, without))
            is_judged = key == "server_cpu_us"
            table.put(figure, median(found[key] for found in with_rules), "no rules",
                      median(found[key] for found in without), unit, float(f"{ratio:.3g}"),
                      f"≤ {MOST} ×" if is_judged else None, ratio <= MOST if is_judged else None)
