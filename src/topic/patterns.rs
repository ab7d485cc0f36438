//! Wildcard patterns: at which levels filters have `+`.
//!
//! A look-up visits a node of the subscription tree for each pattern at most, since one pattern and the topic name tell
//! which levels lead there; so the number of patterns bounds what any look-up costs, however many filters there are.
//! Packet classification knows this as tuple space search (Srinivasan, Suri and Varghese, SIGCOMM 1999).
//!
//! Every beginning of a filter has a pattern of its own: `a/+/b` has those of `a`, of `a/+` and of itself. Filters
//! without a wildcard have none, because they are not in the tree.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::trie::{has_wildcard, take_apart};

/// Patterns of so many levels do not count as [deep](Patterns::deep): all of them are about two thousand.
pub const SHALLOW_LEVELS: usize = 10;

/// No pattern.
const NONE: u32 = u32::MAX;

const ROOT: u32 = 0;

/// The patterns of all filters, each as long as one of them has it.
#[derive(Debug, Default)]
pub struct Patterns {
    /// A tree by level; the first one stands for no levels.
    nodes: Vec<Pattern>,
    free: Vec<u32>,
    all: usize,
    deep: usize,
}

#[derive(Debug)]
struct Pattern {
    /// Filters that have it.
    filters: u64,
    /// The pattern with one level more: a name, or `+`.
    longer: [u32; 2],
}

impl Pattern {
    const UNUSED: Pattern = Pattern {
        filters: 0,
        longer: [NONE; 2],
    };
}

/// The patterns of one session's filters: how many of these have each.
#[derive(Debug, Default)]
pub struct OwnPatterns(FxHashMap<u32, u32>);

impl OwnPatterns {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn remove(&mut self, pattern: u32) {
        if let Entry::Occupied(mut filters) = self.0.entry(pattern) {
            *filters.get_mut() -= 1;
            if *filters.get() == 0 {
                filters.remove();
            }
        }
        if self.0.is_empty() {
            *self = OwnPatterns::default();
        }
    }
}

/// How many patterns a filter would add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// To those of its session.
    pub own: usize,
    /// To the [deep](Patterns::deep) ones of all.
    pub deep: usize,
}

impl Patterns {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.all
    }

    /// How many of them have more than [`SHALLOW_LEVELS`] levels.
    pub fn deep(&self) -> usize {
        self.deep
    }

    /// How many a filter of a session would add.
    pub fn missing(&self, filter: &str, own: &OwnPatterns) -> Missing {
        let mut missing = Missing::default();
        let mut at = ROOT;
        for (level, is_plus) in levels(filter).enumerate() {
            at = match self.nodes.get(at as usize) {
                Some(pattern) => pattern.longer[usize::from(is_plus)],
                None => NONE,
            };
            missing.own += usize::from(!own.0.contains_key(&at));
            missing.deep += usize::from(at == NONE && level >= SHALLOW_LEVELS);
        }
        missing
    }

    /// Adds those of one more filter of a session.
    pub fn add(&mut self, filter: &str, own: &mut OwnPatterns) {
        let mut at = ROOT;
        for (level, is_plus) in levels(filter).enumerate() {
            if self.nodes.is_empty() {
                self.nodes.push(Pattern::UNUSED);
            }
            let next = self.nodes[at as usize].longer[usize::from(is_plus)];
            at = match next {
                NONE => self.grow(at, level, is_plus),
                _ => next,
            };
            self.nodes[at as usize].filters += 1;
            *own.0.entry(at).or_default() += 1;
        }
    }

    fn grow(&mut self, parent: u32, level: usize, is_plus: bool) -> u32 {
        let new = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Pattern::UNUSED);
            // There are fewer than nodes of the subscription tree.
            self.nodes.len() as u32 - 1
        });
        self.nodes[parent as usize].longer[usize::from(is_plus)] = new;
        self.all += 1;
        self.deep += usize::from(level >= SHALLOW_LEVELS);
        new
    }

    /// Removes those of a filter that was added, of its session, too, if that is still there.
    pub fn remove(&mut self, filter: &str, mut own: Option<&mut OwnPatterns>) {
        let mut at = ROOT;
        for (level, is_plus) in levels(filter).enumerate() {
            let next = self.nodes[at as usize].longer[usize::from(is_plus)];
            let pattern = &mut self.nodes[next as usize];
            pattern.filters -= 1;
            if pattern.filters == 0 {
                // The longer ones are removed next.
                self.nodes[at as usize].longer[usize::from(is_plus)] = NONE;
                self.free.push(next);
                self.all -= 1;
                self.deep -= usize::from(level >= SHALLOW_LEVELS);
            }
            if let Some(own) = &mut own {
                own.remove(next);
            }
            at = next;
        }
        if self.all == 0 {
            *self = Patterns::default();
        }
    }
}

/// Of each level before a final `#`, whether it is `+`; none of a filter without a wildcard.
fn levels(filter: &str) -> impl Iterator<Item = bool> {
    let (levels, _) = match has_wildcard(filter) {
        true => take_apart(filter),
        false => (None, false),
    };
    levels
        .into_iter()
        .flat_map(|levels| levels.split('/'))
        .map(|level| level == "+")
}

#[cfg(test)]
#[path = "patterns_tests.rs"]
mod tests;
