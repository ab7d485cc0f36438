//! Waiting for a condition. Tests wait for nothing else, and never for longer than a deadline.
//!
//! Deadlines are generous: they end a hang and say nothing about speed, which benchmarks measure. Where a bound of time
//! is itself the promise, [`allowed`] says how much of it a run holds the nodes to, and [`with_slack`] where the bound is
//! a timer's: a keep-alive, an expiry, a lease. Where a fault is known that took less than [`allowed`] gives,
//! [`allowed_times`] says what finds it.

use std::time::{Duration, Instant};

/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(20);

/// How much longer everything may take where the machine has other work: then a bound of time tells a standstill from
/// work, and no more.
pub const ORDINARY: u32 = 4;

/// What a promised bound of time is in this run: `QUORUMQ_STRICT=1` (`make chaos`), on a machine that has nothing else
/// to do, takes it as it stands; any other run allows four times as much.
pub fn allowed(bound: Duration) -> Duration {
    allowed_times(bound, ORDINARY)
}

/// The same with a factor of its own, for a test that has the machine to itself (`.config/nextest.toml`): so small that
/// a known fault is beyond it, so large that what the test has seen without the fault is far below it.
pub fn allowed_times(bound: Duration, times: u32) -> Duration {
    match is_strict() {
        true => bound,
        false => times * bound,
    }
}

/// How much later than its time something may be seen to happen where the machine has other work. It is the same for
/// all: what a timer waits for does not take longer because the machine is busy.
pub const SLACK: Duration = Duration::from_secs(3);

/// The latest that what happens at a set time may be seen in this run: with `QUORUMQ_STRICT=1` at `bound`, in any other
/// run [`SLACK`] later. A test that gives up before cannot fail.
pub fn with_slack(bound: Duration) -> Duration {
    match is_strict() {
        true => bound,
        false => bound + SLACK,
    }
}

/// Whether a wait that ends after `limit` is long enough to see that `bound` was exceeded, slack included.
pub const fn can_exceed(bound: Duration, limit: Duration) -> bool {
    bound.as_millis() + SLACK.as_millis() < limit.as_millis()
}

/// Whether this run holds the nodes to what is promised as it stands.
pub fn is_strict() -> bool {
    std::env::var_os("QUORUMQ_STRICT").is_some_and(|strict| strict == "1")
}

/// Asks `condition` until it answers, for `within` at most. The panic names `what` was waited for.
#[track_caller]
pub fn until<T>(what: &str, within: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    until_ok(what, within, || condition().ok_or_else(String::new))
}

/// Asks `condition` until it is `Ok`, for `within` at most. The panic names `what` was waited for, how often it was
/// looked at, and the latest error: the state that did not become the wanted one.
#[track_caller]
pub fn until_ok<T>(
    what: &str,
    within: Duration,
    mut condition: impl FnMut() -> Result<T, String>,
) -> T {
    let began = Instant::now();
    let mut looks = 0_u32;
    loop {
        looks += 1;
        let why = match condition() {
            Ok(found) => return found,
            Err(why) => why,
        };
        let waited = began.elapsed();
        if waited >= within {
            let why = if why.is_empty() {
                why
            } else {
                format!("; at last: {why}")
            };
            panic!("waited {waited:.1?} of {within:?} for {what}, looked {looks} times{why}");
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_wait_ends_when_its_condition_holds() {
        let mut looks = 0;
        let found = until("three looks", Duration::from_secs(30), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    fn a_wait_in_vain_says_what_for_and_what_was_there_instead() {
        let within = Duration::from_millis(30);
        let failed = catch_unwind(|| {
            until_ok::<()>("a leader", within, || Err("node 1 is a follower".into()))
        });
        let payload = failed.expect_err("it never holds");
        let said = payload.downcast_ref::<String>().expect("it has a text");
        assert!(said.contains("for a leader, looked "), "{said}");
        assert!(said.ends_with("at last: node 1 is a follower"), "{said}");
    }
}
