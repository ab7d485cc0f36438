//! How much is done with letters of event subscriptions in one batch.

use super::super::batch::Batch;

/// What may still be done with letters of an event subscription: so many, and so many bytes, the last one of which may
/// exceed them. Clients choose how large a letter is, and each that is looked at is read: so all event subscriptions
/// share the bytes of a batch.
pub(super) struct Portion {
    pub(super) letters: usize,
    pub(super) bytes: u64,
}

impl Portion {
    pub(super) fn of(batch: &Batch<'_, '_>, letters: usize) -> Portion {
        Portion {
            letters,
            bytes: batch.letter_bytes_left(),
        }
    }

    /// What was looked at is not left for others.
    pub(super) fn settle(&self, batch: &mut Batch<'_, '_>) {
        let spent = batch.letter_bytes_left().saturating_sub(self.bytes);
        batch.spend_letter_bytes(spent);
    }

    pub(super) fn within(&self, letters: u64, bytes: u64) -> Portion {
        let letters = usize::try_from(letters).unwrap_or(usize::MAX);
        Portion {
            letters: letters.min(self.letters),
            bytes: bytes.min(self.bytes),
        }
    }

    /// Whether there may be more to do than was to be done now.
    pub(super) fn is_used_up(&self) -> bool {
        self.letters == 0 || self.bytes == 0
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.letters = self.letters.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(super) fn spend_all(&mut self, letters: &[(u64, u64)]) {
        for (_, bytes) in letters {
            self.spend(*bytes);
        }
    }
}
