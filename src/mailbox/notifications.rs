//! Changes of a twin's desired properties that its device or module is to hear of.
//!
//! Invariant: they leave in the order in which they were committed, each once, by itself or folded: none is dropped.
//! Invariant: at most [`MOST`] wait, and bytes as [`MOST_BYTES`] says. When there are more, all that wait become one,
//! which says what became of the document from before the first of them to after the last.

use std::collections::VecDeque;

use crate::machine::hub::DesiredChanged;
use crate::twin::EncodedSection;

/// Notifications that wait for a client that reads slowly.
const MOST: usize = 16;

/// Their bytes; one that several were folded into may have more, which the size of a document bounds.
const MOST_BYTES: usize = 256 << 10;

/// What a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// One write, as its body says it.
    Written {
        /// The version of the desired properties after it.
        version: u64,
        /// The body.
        body: String,
    },
    /// Several writes at once.
    Folded {
        /// The version after the last of them.
        version: u64,
        /// The document before the first of them.
        before: EncodedSection,
        /// The document after the last of them.
        after: EncodedSection,
    },
}

impl Notification {
    /// The version of the desired properties after what it tells.
    pub fn version(&self) -> u64 {
        match self {
            Notification::Written { version, .. } | Notification::Folded { version, .. } => {
                *version
            }
        }
    }

    fn bytes(&self) -> usize {
        let content = match self {
            Notification::Written { body, .. } => body.len(),
            Notification::Folded { before, after, .. } => before.0.len() + after.0.len(),
        };
        size_of::<Notification>() + content
    }
}

/// The notifications that wait for one connection. Most connections never have any, and keep no room for them.
#[derive(Debug, Default)]
pub struct Notifications(Option<Box<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// At least one.
    queue: VecDeque<Notification>,
    /// The document before the first of them.
    before: EncodedSection,
    /// The document after the last of them.
    after: EncodedSection,
    bytes: usize,
}

impl Notifications {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Memory that they take, about.
    pub(super) fn bytes(&self) -> usize {
        let bytes =
            |waiting: &Waiting| waiting.bytes + waiting.before.0.len() + waiting.after.0.len();
        self.0.as_deref().map_or(0, bytes)
    }

    /// Adds a change. Returns how many notifications there are less than changes because of it.
    pub(super) fn push(&mut self, change: DesiredChanged) -> u64 {
        let DesiredChanged {
            version,
            body,
            before,
            after,
            ..
        } = change;
        let waiting = self.0.get_or_insert_with(|| {
            Box::new(Waiting {
                before,
                ..Waiting::default()
            })
        });
        waiting.after = after;
        let notification = Notification::Written { version, body };
        waiting.bytes += notification.bytes();
        waiting.queue.push_back(notification);
        let count = waiting.queue.len();
        if count == 1 || (count <= MOST && waiting.bytes <= MOST_BYTES) {
            return 0;
        }
        let folded = Notification::Folded {
            version,
            before: waiting.before.clone(),
            after: waiting.after.clone(),
        };
        waiting.bytes = folded.bytes();
        waiting.queue.clear();
        waiting.queue.push_back(folded);
        count as u64 - 1
    }

    /// Takes all.
    pub fn take(&mut self) -> impl Iterator<Item = Notification> + use<> {
        self.0.take().into_iter().flat_map(|waiting| waiting.queue)
    }

    /// What a connection is told that was told of these changes.
    #[cfg(test)]
    pub(crate) fn of(changes: impl IntoIterator<Item = DesiredChanged>) -> Notifications {
        let mut notifications = Notifications::default();
        for change in changes {
            notifications.push(change);
        }
        notifications
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::ids::ConnectionId;

    /// The document of a version is its number.
    fn document(version: u64) -> EncodedSection {
        EncodedSection(version.to_be_bytes().to_vec().into())
    }

    fn change(version: u64, bytes: usize) -> DesiredChanged {
        DesiredChanged {
            connection: ConnectionId(1),
            version,
            body: "b".repeat(bytes),
            before: document(version - 1),
            after: document(version),
        }
    }

    #[test]
    fn a_mailbox_without_any_keeps_no_room() {
        assert_eq!(size_of::<Notifications>(), size_of::<usize>());
    }

    /// From which version to which one each goes.
    fn ranges(notifications: &mut Notifications) -> Vec<(u64, u64)> {
        let number = |document: &EncodedSection| {
            let bytes = document.0[..].try_into().expect("eight bytes");
            u64::from_be_bytes(bytes)
        };
        let taken = notifications.take().map(|one| match one {
            Notification::Written { version, .. } => (version - 1, version),
            Notification::Folded {
                version,
                before,
                after,
            } => {
                assert_eq!(number(&after), version);
                (number(&before), version)
            }
        });
        taken.collect()
    }

    #[test]
    fn sixteen_wait_and_one_more_folds_them_all() {
        let mut waiting = Notifications::default();
        for version in 2..18 {
            assert_eq!(waiting.push(change(version, 10)), 0);
        }
        let each: Vec<_> = (2..18).map(|version| (version - 1, version)).collect();
        assert_eq!(ranges(&mut waiting), each);
        assert!(waiting.is_empty() && waiting.bytes() == 0);
        for version in 18..34 {
            assert_eq!(waiting.push(change(version, 10)), 0);
        }
        assert_eq!(waiting.push(change(34, 10)), 16);
        assert_eq!(waiting.push(change(35, 10)), 0);
        assert_eq!(ranges(&mut waiting), [(17, 34), (34, 35)]);
    }

    #[test]
    fn bytes_are_bounded_too_but_for_the_only_one() {
        let mut waiting = Notifications::default();
        assert_eq!(waiting.push(change(2, MOST_BYTES + 1)), 0);
        assert_eq!(waiting.push(change(3, 1)), 1);
        assert!(waiting.bytes() < 1_000);
        assert_eq!(waiting.push(change(4, 1)), 0);
        assert_eq!(ranges(&mut waiting), [(1, 3), (3, 4)]);
    }

    proptest! {
        /// However the client takes them: versions go on without a gap, and what waits is bounded.
        #[test]
        fn no_change_is_lost_or_told_twice(
            steps in proptest::collection::vec((0usize..80_000, any::<bool>()), 1..200),
        ) {
            let mut waiting = Notifications::default();
            let (mut heard, mut folded, mut told) = (1, 0, 0);
            for (version, (bytes, is_read)) in (2..).zip(steps) {
                folded += waiting.push(change(version, bytes));
                let kept = waiting.0.as_ref().expect("one was put in");
                prop_assert!(kept.queue.len() <= MOST);
                prop_assert!(kept.queue.len() == 1 || kept.bytes <= MOST_BYTES);
                if is_read {
                    for (from, to) in ranges(&mut waiting) {
                        prop_assert_eq!(from, heard);
                        heard = to;
                        told += 1;
                    }
                    prop_assert_eq!(heard, version);
                    prop_assert_eq!(told + folded, version - 1);
                }
            }
        }
    }
}
