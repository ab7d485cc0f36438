"""Figures beside each other, with the ratio and the goal."""

from processes import say


class Table:
    def __init__(self):
        self.rows = []

    def add(self, figure, ours, peer, theirs, unit, goal=None, at_most=False):
        """One figure beside one peer's. `goal` is a ratio of ours to theirs."""
        ratio = ours / theirs if ours is not None and theirs else None
        met = None
        if ratio is not None and goal is not None:
            met = ratio <= goal if at_most else ratio >= goal
        self.put(figure, ours, peer, theirs, unit, ratio and float(f"{ratio:.3g}"),
                 goal and ("≤ " if at_most else "≥ ") + f"{goal} ×", met)

    def beside(self, figure, ours, peers, unit, goal=None, at_most=False):
        """One figure beside those of several peers; the goal counts against the best of them."""
        measured = {peer: value for peer, value in peers.items() if value is not None}
        if not measured:
            return self.add(figure, ours, "", None, unit, goal, at_most)
        best = (min if at_most else max)(measured, key=measured.get)
        for peer, value in measured.items():
            self.add(figure, ours, peer, value, unit, goal if peer == best else None, at_most)

    def absolute(self, figure, ours, unit, limit=None):
        """A figure with a limit of its own."""
        met = ours <= limit if ours is not None and limit is not None else None
        self.put(figure, ours, "", None, unit, None, limit and f"≤ {limit:,}", met)

    def put(self, figure, ours, peer, theirs, unit, ratio, goal, met):
        self.rows.append({"figure": figure, "quorumq": ours, "peer": peer, "peer_value": theirs, "unit": unit,
                          "ratio": ratio, "goal": goal, "met": met})
        say(self.line(self.rows[-1]))

    @staticmethod
    def line(row):
        number = lambda value: "-" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
        met = {True: "met", False: "MISSED", None: ""}[row["met"]]
        return (f"{row['figure']:<48} {number(row['quorumq']):>13} {row['unit']:<7} {row['peer']:<16}"
                f" {number(row['peer_value']):>12}  {'-' if row['ratio'] is None else format(row['ratio'], 'g'):>8}  {row['goal'] or '':<10} {met}").rstrip()

    def show(self):
        print(f"{'FIGURE':<48} {'QUORUMQ':>13} {'UNIT':<7} {'PEER':<16} {'PEER VALUE':>12}  {'RATIO':>8}  GOAL")
        for row in self.rows:
            print(self.line(row))
