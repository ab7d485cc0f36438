//! A client that is judged again and again, from several threads.

use std::sync::Arc;

use parking_lot::Mutex;

use super::book::RuleBook;
use super::facts::Facts;
use super::limits::Limits;
use super::rights::{Rights, Share};

/// A client, and what it may do by the rules as they are.
#[derive(Debug)]
pub struct Client {
    book: Arc<RuleBook>,
    known: Mutex<Known>,
}

/// What is known of a client.
#[derive(Debug)]
struct Known {
    facts: Arc<Facts>,
    /// The number of changes of the rules at which its rights were found out.
    changes: u64,
    rights: Arc<Rights>,
}

impl Client {
    /// A client that has come to this node.
    pub fn new(facts: Facts, book: &Arc<RuleBook>) -> Client {
        let changes = book.changes();
        let known = Known {
            changes,
            rights: book.rights(&facts),
            facts: Arc::new(facts),
        };
        Client {
            known: Mutex::new(known),
            book: book.clone(),
        }
    }

    /// The number of changes of the rules so far.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.book.changes()
    }

    /// What it may do, now.
    pub fn rights(&self) -> Arc<Rights> {
        let changes = self.book.changes();
        let mut known = self.known.lock();
        if known.changes != changes {
            known.changes = changes;
            known.rights = self.book.rights(&known.facts);
        }
        known.rights.clone()
    }

    /// Something else is known of it from now on. Returns whether it is.
    pub fn identify(&self, facts: Facts) -> bool {
        let changes = self.book.changes();
        let mut known = self.known.lock();
        if *known.facts == facts {
            return false;
        }
        *known = Known {
            changes,
            rights: self.book.rights(&facts),
            facts: Arc::new(facts),
        };
        true
    }

    /// What is known of it.
    pub fn facts(&self) -> Arc<Facts> {
        self.known.lock().facts.clone()
    }

    /// Its limits, now.
    pub fn limits(&self) -> Limits {
        self.book.rules().limits(&self.facts())
    }

    /// Whether it may get the messages of a topic, now.
    pub fn may_receive(&self, topic: &str, share: Share<'_>) -> bool {
        self.book.are_open() || self.rights().may_receive(topic, share)
    }
}
