//! Log time in simulated time: clocks that are off, drift, step and sleep; leaders that change; clusters that stop.

use proptest::prelude::*;

use super::*;

#[path = "clock_wall_tests.rs"]
mod wall;

#[path = "clock_catch_up_tests.rs"]
mod catch_up;

const MS: i64 = 1_000;
const S: i64 = 1_000_000;

/// What log time may gain on real time, in millionths: half for the oscillator, half for the correction.
const GAIN_PPM: i64 = 1_000;

/// What it may gain on top, at all changes of leaders together: see [`a_change_of_leaders_moves_log_time_by_little`].
const JUMP_US: i64 = 200 * MS;

/// A machine: its clocks never stop, whatever happens to the process.
#[derive(Clone, Debug)]
struct Machine {
    started_us: i64,
    drift_ppm: i64,
    /// Wall clock minus real time.
    wall_off_us: i64,
}

impl Machine {
    fn elapsed(&self, real_us: i64) -> Elapsed {
        let passed = real_us - self.started_us;
        let us = passed + passed / S * self.drift_ppm;
        Elapsed::from_duration(Duration::from_micros(u64::try_from(us).expect("positive")))
    }

    fn wall(&self, real_us: i64) -> Millis {
        millis(real_us + self.wall_off_us)
    }
}

/// Real time at the beginning, microseconds since the epoch.
const BEGIN: i64 = 1_700_000_000 * S;

struct Cluster {
    machines: Vec<Machine>,
    /// `None` while the process is down, or its machine asleep.
    nodes: Vec<LogTime>,
    away: Vec<bool>,
    leader: usize,
    term: u64,
    real_us: i64,
    /// Log time applied everywhere.
    log: Millis,
    /// The lowest `stamp - (1 + gain) * real time` so far.
    lowest: Option<i64>,
    stamps: u64,
    random: u64,
}

impl Cluster {
    fn new(machines: Vec<Machine>, seed: u64) -> Cluster {
        let count = machines.len();
        let mut cluster = Cluster {
            machines,
            nodes: Vec::new(),
            away: vec![false; count],
            leader: 0,
            term: 1,
            real_us: BEGIN,
            log: Millis(0),
            lowest: None,
            stamps: 0,
            random: seed,
        };
        cluster.nodes = (0..count).map(|_| cluster.process()).collect();
        cluster
    }

    fn id(node: usize) -> NodeId {
        NodeId(node as u64 + 1)
    }

    /// A process that has just started.
    fn process(&self) -> LogTime {
        let mut node = LogTime::default();
        node.set_voters((0..self.machines.len()).map(Self::id).collect());
        node
    }

    fn below(&mut self, bound: i64) -> i64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        i64::try_from(self.random >> 33).expect("31 bits") % bound
    }

    fn at(&self, node: usize) -> Elapsed {
        self.machines[node].elapsed(self.real_us)
    }

    /// Another leader, if another node is there.
    fn elect(&mut self) {
        let count = self.nodes.len();
        let first = usize::try_from(self.below(8)).expect("small");
        let found = (0..count)
            .map(|step| (first + step) % count)
            .find(|node| !self.away[*node]);
        self.leader = found.expect("a majority is there");
        self.term += 1;
    }

    /// Every node asks the leader for contact; messages take up to 20 ms.
    fn contacts(&mut self) {
        let leader = self.leader;
        self.stamp();
        let at = self.at(leader);
        self.nodes[leader].compare(Self::id(leader), at);
        for node in 0..self.nodes.len() {
            if node == leader || self.away[node] {
                continue;
            }
            let wall = self.machines[node].wall(self.real_us);
            let log = self.nodes[node].live(self.at(node));
            self.real_us += self.below(20 * MS);
            let at = self.at(leader);
            self.nodes[leader].heard(Self::id(node), wall, log, at);
            self.nodes[leader].compare(Self::id(leader), at);
            let agreed = self.nodes[leader].agreed_wall(at);
            let told = self.nodes[leader].live(at);
            self.real_us += self.below(20 * MS);
            let at = self.at(node);
            if let Some(told) = told {
                self.nodes[node].follow(self.term, told, at);
            }
            self.nodes[node].told_wall(agreed, at);
        }
    }

    /// The leader stamps a batch, which is applied everywhere.
    fn stamp(&mut self) {
        let (leader, at) = (self.leader, self.at(self.leader));
        let wall = self.machines[leader].wall(self.real_us);
        let Some(stamp) = self.nodes[leader].stamp(Self::id(leader), self.term, wall, at) else {
            return;
        };
        assert!(stamp >= self.log, "log time went back");
        self.stamps += 1;
        let passed = self.real_us - BEGIN;
        let gained = us(stamp) - BEGIN - passed - passed / S * GAIN_PPM;
        let lowest = self.lowest.unwrap_or(gained).min(gained);
        self.lowest = Some(lowest);
        assert!(
            gained - lowest <= JUMP_US,
            "a lease that was given before would be early by {} ms: at {} s node {leader} leads term {}",
            (gained - lowest) / MS,
            passed as f64 / S as f64,
            self.term
        );
        self.log = stamp;
        self.real_us += self.below(5 * MS);
        for node in 0..self.nodes.len() {
            if !self.away[node] {
                let at = self.at(node);
                self.nodes[node].applied(stamp, at);
            }
        }
    }

    fn run(&mut self, seconds: i64) {
        let end = self.real_us + seconds * S;
        while self.real_us < end {
            self.contacts();
            self.real_us += 250 * MS;
        }
    }

    /// All processes are down for a while. Log time moves on by that.
    fn stop_all(&mut self, seconds: i64) {
        self.real_us += seconds * S;
        for node in 0..self.nodes.len() {
            self.nodes[node] = self.process();
            let at = self.at(node);
            // Each applies what is in its log.
            self.nodes[node].applied(Millis(self.log.0.saturating_sub(5_000)), at);
            self.nodes[node].applied(self.log, at);
        }
        self.lowest = None;
        self.elect();
    }

    /// How far log time is ahead of real time, us.
    fn ahead(&self) -> i64 {
        us(self.log) - self.real_us
    }
}

fn right(drift_ppm: i64) -> Machine {
    Machine {
        started_us: BEGIN - 1_000 * S,
        drift_ppm,
        wall_off_us: 0,
    }
}

fn machines(offsets_s: [i64; 3]) -> Vec<Machine> {
    let machine = |off: i64| Machine {
        wall_off_us: off * S,
        started_us: BEGIN - (off.abs() + 10) * S,
        drift_ppm: 0,
    };
    offsets_s.into_iter().map(machine).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Run(i64),
    Elect,
    /// One node's wall clock is set, seconds.
    SetWall(i64),
    /// One node's machine sleeps, or its process is stopped, for as long as the next runs.
    Sleep(usize),
    Wake,
    Restart(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1i64..120).prop_map(Step::Run),
        1 => (600i64..7_200).prop_map(Step::Run),
        4 => Just(Step::Elect),
        2 => (-400i64..400).prop_map(Step::SetWall),
        2 => (0usize..3).prop_map(Step::Sleep),
        2 => Just(Step::Wake),
        2 => (0usize..3).prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..25)
}

/// Faults follow each other by a second at least, in which every node hears log time. Without it nobody may know log
/// time, which is as after a stop of all nodes: `docs/adr/0011-log-time-is-handed-on.md` says what happens then.
fn perform(cluster: &mut Cluster, step: &Step, wrong: usize) {
    if matches!(step, Step::Sleep(_) | Step::Restart(_)) {
        cluster.away = vec![false; cluster.away.len()];
        cluster.run(1);
    }
    match step {
        Step::Run(seconds) => cluster.run(*seconds),
        Step::Elect => cluster.elect(),
        // One node alone has a clock that steps: the others are a majority.
        Step::SetWall(off) => cluster.machines[wrong].wall_off_us = off * S,
        Step::Sleep(node) => {
            cluster.away[*node] = true;
            if cluster.leader == *node {
                cluster.elect();
            }
        }
        Step::Wake => cluster.away = vec![false; cluster.away.len()],
        Step::Restart(node) => {
            cluster.nodes[*node] = cluster.process();
            let at = cluster.at(*node);
            let log = cluster.log;
            cluster.nodes[*node].applied(log, at);
            if cluster.leader == *node {
                cluster.elect();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// P8: no lease is early by more than the bound, and log time is near real time, whatever one wrong clock, changes
    /// of leaders, sleeping machines and restarts do.
    #[test]
    fn one_wrong_clock_does_no_harm(
        steps in steps(),
        wrong in 0usize..3,
        off_s in -300i64..=300,
        drifts in prop::array::uniform3(-500i64..=500),
        seed in any::<u64>(),
    ) {
        let mut machines: Vec<Machine> = drifts.into_iter().map(right).collect();
        machines[wrong].wall_off_us = off_s * S;
        let mut cluster = Cluster::new(machines, seed);
        cluster.run(5);
        // While one node is asleep, no majority may agree: the leader's oscillator runs on alone.
        let mut alone = 0;
        for step in &steps {
            perform(&mut cluster, step, wrong);
            if let Step::Run(seconds) = step && *seconds > 5 {
                if cluster.away.contains(&true) {
                    alone += seconds * 500;
                }
                let ahead = cluster.ahead();
                prop_assert!(ahead < S + alone, "{} ms ahead", ahead / MS);
                prop_assert!(ahead > -30 * S - alone, "{} ms behind", -ahead / MS);
            }
        }
    }

    /// A cluster that was stopped for hours goes on with the time that a majority's clocks show; no request of a client
    /// with a right clock is refused.
    #[test]
    fn a_stopped_cluster_goes_on_with_real_time(
        hours in prop::collection::vec(1i64..400, 1..4),
        wrong in 0usize..3,
        off_s in -300i64..=300,
        seed in any::<u64>(),
    ) {
        let mut machines: Vec<Machine> = [200, -200, 0].into_iter().map(right).collect();
        machines[wrong].wall_off_us = off_s * S;
        let mut cluster = Cluster::new(machines, seed);
        for stopped in hours {
            // Killed young: nothing but the registrations may have been stamped.
            cluster.run(3);
            prop_assert!(cluster.ahead().abs() < 3 * S, "{} ms", cluster.ahead() / MS);
            cluster.stop_all(stopped * 3_600);
        }
        cluster.run(3);
        prop_assert!(cluster.ahead().abs() < 3 * S, "{} ms", cluster.ahead() / MS);
    }
}

#[test]
fn clocks_that_are_five_minutes_off_are_passed_over_from_the_start() {
    for offsets in [[0, 300, -300], [300, 0, -300], [0, 0, 300], [-300, 0, 0]] {
        let mut cluster = Cluster::new(machines(offsets), 7);
        cluster.run(5);
        assert!(cluster.stamps > 5);
        assert!(
            cluster.ahead().abs() < S,
            "{offsets:?}: {}",
            cluster.ahead()
        );
        let leader = cluster.leader;
        for (node, off) in offsets.into_iter().enumerate() {
            let ahead = cluster.nodes[leader].ahead_ms(Cluster::id(node), cluster.at(leader));
            let ahead = ahead.expect("every clock was heard");
            assert_eq!(
                ahead.unsigned_abs() > WRONG_BY_MS,
                off != 0,
                "node {node}: {ahead} ms"
            );
        }
    }
}

#[test]
fn a_follower_whose_wall_clock_is_ahead_does_not_run_ahead() {
    let mut cluster = Cluster::new(machines([0, 250, 0]), 1);
    cluster.run(24 * 3_600);
    cluster.leader = 1;
    cluster.term += 1;
    cluster.run(10);
    assert!(cluster.ahead() < 50 * MS, "{}", cluster.ahead());
}

#[test]
fn a_change_of_leaders_moves_log_time_by_little() {
    let mut machines: Vec<Machine> = [500, -500, 0].into_iter().map(right).collect();
    machines[1].wall_off_us = 3_600 * S;
    let mut cluster = Cluster::new(machines, 3);
    cluster.run(60);
    for _ in 0..300 {
        let before = cluster.ahead();
        cluster.elect();
        cluster.run(1);
        let moved = cluster.ahead() - before;
        // It is looked at up to 70 ms after the stamp.
        assert!((-170 * MS..170 * MS).contains(&moved), "{} ms", moved / MS);
    }
}

#[test]
fn a_wrong_majority_is_followed_slowly_and_there_is_a_way_back() {
    let mut cluster = Cluster::new(machines([0, 0, 0]), 5);
    cluster.run(10);
    // The clocks of two nodes are set ahead by five minutes. Nothing jumps, and every lease keeps 19 of 20 parts.
    for node in [0, 1] {
        cluster.machines[node].wall_off_us = 300 * S;
    }
    let began = cluster.real_us;
    let mut nodes = std::mem::take(&mut cluster.nodes);
    let (leader, term) = (cluster.leader, cluster.term + 1);
    let mut stamp_at = |cluster: &Cluster| {
        for node in 0..3 {
            let wall = cluster.machines[node].wall(cluster.real_us);
            let at = cluster.at(leader);
            nodes[leader].heard(Cluster::id(node), wall, None, at);
        }
        let wall = cluster.machines[leader].wall(cluster.real_us);
        let at = cluster.at(leader);
        let stamp = nodes[leader].stamp(Cluster::id(leader), term, wall, at);
        us(stamp.expect("it knows log time")) - cluster.real_us
    };
    let before = stamp_at(&cluster);
    for _ in 0..4 * 3_600 * 2 {
        cluster.real_us += 250 * MS;
        let ahead = stamp_at(&cluster) - before;
        let passed = cluster.real_us - began;
        assert!(ahead <= passed / CATCH_UP + 100 * MS, "{} ms", ahead / MS);
    }
    let reached = stamp_at(&cluster);
    assert!(
        reached > 250 * S,
        "right clients are not refused: {} s",
        reached / S
    );
    // The clocks are set right: log time waits for them, at most a fiftieth slower than real time.
    for node in [0, 1] {
        cluster.machines[node].wall_off_us = 0;
    }
    for _ in 0..4 * 3_600 * 5 {
        cluster.real_us += 250 * MS;
        stamp_at(&cluster);
    }
    assert!(stamp_at(&cluster) < S);
}

#[test]
fn a_new_leader_that_knows_log_time_from_nobody_asks_the_others() {
    let mut cluster = Cluster::new(machines([0, 0, 0]), 9);
    cluster.run(5);
    // Its wall clock is an hour ahead, and its process has just started.
    cluster.machines[2].wall_off_us = 3_600 * S;
    cluster.nodes[2] = cluster.process();
    let (log, at) = (cluster.log, cluster.at(2));
    cluster.nodes[2].applied(log, at);
    (cluster.leader, cluster.term) = (2, 2);
    let before = cluster.stamps;
    cluster.stamp();
    assert_eq!(
        cluster.stamps, before,
        "it does not stamp by its wall clock"
    );
    cluster.run(2);
    assert!(cluster.stamps > before);
    assert!(cluster.ahead() < 50 * MS);
}

#[test]
fn two_of_three_that_disagree_go_on_after_a_while() {
    let mut cluster = Cluster::new(machines([0, 300, 0]), 2);
    cluster.away[2] = true;
    cluster.run(2);
    assert_eq!(cluster.stamps, 0, "nobody knows who is right");
    cluster.run(3);
    assert!(cluster.stamps > 0);
    assert!(cluster.ahead() < S, "late rather than early");
}

#[test]
fn a_single_node_goes_on_by_its_own_clock() {
    let mut cluster = Cluster::new(vec![right(0)], 2);
    cluster.run(10);
    assert!(cluster.stamps > 10);
    assert!(cluster.ahead().abs() < S);
    // NTP sets it back by a minute: log time waits, a fiftieth slower than real time, and goes back never.
    cluster.machines[0].wall_off_us = -60 * S;
    cluster.run(300);
    let ahead = cluster.ahead();
    assert!((-7 * S..-4 * S).contains(&ahead), "{} ms", ahead / MS);
}
