//! Waiting for a condition with a deadline; tests wait for nothing else.

use std::time::{Duration, Instant};

/// Asks `condition` until it answers, at most for `within`; the panic names `what` was waited for.
#[track_caller]
pub fn until<T>(what: &str, within: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "waited {within:?} in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
