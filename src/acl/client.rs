//! A client that is judged again and again, from several threads.

use std::sync::Arc;

use parking_lot::Mutex;

use super::book::RuleBook;
use super::facts::Facts;
use super::limits::Limits;
use super::rights::Rights;

/// A client, and what it may do by the rules as they are.
#[derive(Debug)]
pub struct Client {
    facts: Facts,
    book: Arc<RuleBook>,
    /// Its rights, and the number of changes at which they were found out.
    known: Mutex<(u64, Arc<Rights>)>,
}

impl Client {
    /// A client that has come to this node.
    pub fn new(facts: Facts, book: &Arc<RuleBook>) -> Client {
        let changes = book.changes();
        let rights = book.rights(&facts);
        Client {
            known: Mutex::new((changes, rights)),
            facts,
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
        if known.0 != changes {
            *known = (changes, self.book.rights(&self.facts));
        }
        known.1.clone()
    }

    /// What is known of it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its limits, now.
    pub fn limits(&self) -> Limits {
        self.book.rules().limits(&self.facts)
    }

    /// Whether it may get the messages of a topic, now.
    pub fn may_receive(&self, topic: &str) -> bool {
        self.book.are_open() || self.rights().may_receive(topic)
    }
}
