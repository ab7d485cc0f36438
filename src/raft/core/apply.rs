//! The replicated state machine as Raft sees it; implemented above.

use bytes::Bytes;

use crate::base::ids::LogIndex;
use crate::machine::tables::{Backing, Tables};
use crate::storage::StateView;

/// Work on the state as it was at one moment; it runs on a thread of its own.
pub type Look = Box<dyn FnOnce(&StateView<'_>) + Send>;

/// Applies committed batches. Called from one thread, in log order.
///
/// The same entries may come again after a restart: state that was not written when the process died is applied anew
/// from the log.
pub trait Apply: Send + 'static {
    /// Runs one committed batch. Reads and writes go through `tables`; outputs (replies, effects) are kept
    /// until [`Apply::committed`]. An error of a command is a reply: this can't fail.
    fn apply(&mut self, index: LogIndex, batch: Bytes, tables: &mut Tables<'_>);

    /// What is to look at the state exactly as it is after the batch that was applied last. Asked after each batch;
    /// that batch is written, and nothing after it, before the work begins.
    fn look(&mut self) -> Option<Look> {
        None
    }

    /// Why this replica must not go on: its state is not what the others have. Asked after [`Apply::committed`].
    fn diverged(&mut self) -> Option<String> {
        None
    }

    /// Everything applied up to and including `last` is written to `state/` in one atomic batch: release its
    /// outputs.
    fn committed(&mut self, last: LogIndex);

    /// The state was opened, or replaced by a snapshot, and holds everything up to `last`: rebuild what is
    /// kept in memory from it and drop outputs that were not released.
    fn restored(&mut self, backing: &dyn Backing, last: LogIndex);
}
