//! The rules of a node, as they are now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;

use super::facts::Facts;
use super::rights::Rights;
use super::rules::Rules;

/// The rules of a node.
///
/// Invariant: the number of changes rises after the rules have changed. Whoever reads the number first and the rules
/// afterwards never takes older rules for those of a number.
#[derive(Debug)]
pub struct RuleBook {
    rules: ArcSwap<Rules>,
    changes: AtomicU64,
}

impl Default for RuleBook {
    /// Nobody has written rules.
    fn default() -> Self {
        RuleBook {
            rules: ArcSwap::from_pointee(Rules::open()),
            changes: AtomicU64::new(0),
        }
    }
}

impl RuleBook {
    /// Replaces all rules.
    pub fn set(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of changes so far: what was judged at another number may be judged otherwise now.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether every client may do everything, now.
    #[inline]
    pub fn are_open(&self) -> bool {
        self.rules.load().are_open()
    }

    /// The rules.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// What a client may do, now.
    pub fn rights(&self, facts: &Facts) -> Arc<Rights> {
        static OPEN: LazyLock<Arc<Rights>> =
            LazyLock::new(|| Arc::new(Rights::new(&Arc::new(Rules::open()), &Facts::default())));
        let rules = self.rules();
        match rules.are_open() {
            // All clients share it, so that rules cost nothing where there are none.
            true => OPEN.clone(),
            false => Arc::new(Rights::new(&rules, facts)),
        }
    }
}
