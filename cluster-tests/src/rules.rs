//! Many small rules on one cluster. Each rule is reported under its own name, and a broken rule does not keep the
//! others from being checked.

use crate::cluster::Cluster;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// A rule: its name, and the function that panics when it is broken.
pub type Rule = (&'static str, fn(&Cluster));

/// Checks every rule, then panics with the names of the broken ones. `RULE=part of a name` picks some.
pub fn show(cluster: &Cluster, rules: &[Rule]) {
    let picked = std::env::var("RULE").unwrap_or_default();
    let mut broken = Vec::new();
    for (name, rule) in rules.iter().filter(|(name, _)| name.contains(&picked)) {
        let began = Instant::now();
        let held = catch_unwind(AssertUnwindSafe(|| rule(cluster))).is_ok();
        let verdict = if held { "holds" } else { "BROKEN" };
        eprintln!(
            "rule {name}: {verdict} ({} ms)",
            began.elapsed().as_millis()
        );
        if !held {
            broken.push(*name);
        }
    }
    assert!(
        broken.is_empty(),
        "{} of {} rules broken: {broken:?}",
        broken.len(),
        rules.len()
    );
}

/// A list of [`Rule`]s from functions.
#[macro_export]
macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        &[$((stringify!($rule), $rule as fn(&$crate::cluster::Cluster))),+]
    };
}
