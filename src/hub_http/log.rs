//! What a request asks of the log, and of the state.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::error::{Code, Refusal};
use super::hub::Hub;
use super::query_threads::{Wanted, Work};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::Reply;
use crate::machine::hub::{self, read};
use crate::machine::tables::Backing;
use crate::registry::IdentityId;
use crate::replica::proposer::Overloaded;
use crate::replica::reply_to::ReplyTo;
use crate::replica::share::Share;
use crate::storage::StateView;

/// How long a request waits for the commit of its write. A proposal is carried out exactly once, whatever happens to
/// leaders meanwhile, so waiting is better than to have the back end ask again.
pub(super) const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

impl Hub {
    /// Has the log carry out a command, and returns what came of it here.
    pub(super) async fn propose(&self, kind: Kind) -> Result<Reply, Refusal> {
        if !self.broker.state.is_serving() {
            let text = "this node has no contact with the cluster's majority";
            return Err(Refusal::new(Code::Unavailable, text));
        }
        let removes = matches!(kind, Kind::DeleteIdentity(_));
        if self.broker.state.refuses_writes() && !removes {
            let text = "disks are nearly full: nothing more is stored until there is room";
            return Err(Refusal::new(Code::Unavailable, text));
        }
        let (sender, receiver) = oneshot::channel();
        let (proposer, reply_to) = (&self.broker.services.proposer, ReplyTo::Task(sender));
        let (share, weight) = share(&*self.broker.services.backing, &kind);
        let submitted = proposer.submit_weighing(share, kind, reply_to, weight);
        submitted.map_err(|error: Overloaded| Refusal::new(Code::Throttled, error))?;
        match tokio::time::timeout(COMMIT_TIMEOUT, receiver).await {
            Ok(Ok(reply)) => Ok(reply),
            // The node began anew, or waited long enough.
            Ok(Err(_)) | Err(_) => {
                let text = "the write is not committed in time; it may still be";
                Err(Refusal::new(Code::TimedOut, text))
            }
        }
    }

    /// Waits until this replica has everything that was answered before.
    pub(super) async fn catch_up(&self) -> Result<(), Refusal> {
        let caught_up = self.raft.read_barrier().await;
        caught_up
            .map(drop)
            .map_err(|error| Refusal::new(Code::Unavailable, error))
    }

    /// Reads some rows of one identity as they are at one moment.
    pub(super) async fn read<T: PartialEq + Send + 'static>(
        &self,
        read: impl Fn(&dyn Backing) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.catch_up().await?;
        let backing = &*self.broker.services.backing;
        if let Some(found) = read::at_one_moment(|| read(backing)) {
            return Ok(found);
        }
        // They are written all the time.
        self.read_much(Work::List, move |view, _| Some(read(view)))
            .await
    }

    /// Reads some rows of dozens of identities as they are at one moment, on a thread of its own, when its turn comes.
    /// A view has the newest rows of the whole state written early, so there is one only where rows change all the
    /// time.
    pub(super) async fn read_some<T: PartialEq + Send + 'static>(
        &self,
        read: impl Fn(&dyn Backing) -> T + Clone + Send + 'static,
    ) -> Result<T, Refusal> {
        let (backing, live) = (self.broker.services.backing.clone(), read.clone());
        let live =
            move |backing: &dyn Backing, _: &Wanted| Some(read::at_one_moment(|| live(backing)));
        let found = self
            .queries
            .look_live(&self.raft, Work::List, backing, live);
        match found.await? {
            Some(found) => Ok(found),
            None => {
                self.read_much(Work::List, move |view, _| Some(read(view)))
                    .await
            }
        }
    }

    /// Reads many rows as they are at one moment, on a thread of its own, when its turn comes. `read` is told whether
    /// to go on, and returns `None` when it was not to.
    pub(super) async fn read_much<T: Send + 'static>(
        &self,
        work: Work,
        read: impl FnOnce(&StateView<'_>, &Wanted) -> Option<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.queries.look(&self.raft, work, read).await
    }
}

/// Whose room a command takes, and what it counts beyond its bytes. Whoever is to be kept out is kept out, however much
/// others write, twins included.
fn share(backing: &dyn Backing, kind: &Kind) -> (Share, usize) {
    match kind {
        Kind::UpdateTwin(update) => (Share::BackEnds, weight(backing, update)),
        _ => (Share::Identities, 0),
    }
}

/// What the write of a twin counts beyond its bytes: every node decodes the sections, and writes them anew.
fn weight(backing: &dyn Backing, update: &command::UpdateTwin) -> usize {
    let id = IdentityId::of_parts(&update.device, &update.module);
    let stored = id.map_or(0, |id| hub::back_end_bytes(backing, &id));
    let sections = [&update.tags, &update.desired].into_iter().flatten();
    let growth = sections.map(Bytes::len).sum::<usize>() * limits::PATCH_GROWTH;
    (stored + growth) * limits::SECTION_WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::proto::state::Identity;
    use crate::machine::hub::rows_of_twin;
    use crate::twin::EncodedSection;

    #[test]
    fn the_write_of_a_twin_weighs_what_is_stored_and_what_is_added() {
        let id = IdentityId::device("d").expect("an id");
        let desired = EncodedSection(vec![1; 1_000].into());
        let rows = rows_of_twin(&id, &Identity::default(), desired);
        let of = |device: &str, tags: Option<usize>| {
            let update = command::UpdateTwin {
                device: device.to_owned(),
                tags: tags.map(|bytes| vec![2; bytes].into()),
                ..command::UpdateTwin::default()
            };
            let weight = weight(&rows, &update);
            let taken = share(&rows, &Kind::UpdateTwin(update));
            assert_eq!(taken, (Share::BackEnds, weight));
            weight
        };
        assert_eq!(of("d", None), 1_000 * limits::SECTION_WEIGHT);
        assert_eq!(of("d", Some(50)), 1_100 * limits::SECTION_WEIGHT);
        assert_eq!(of("e", Some(50)), 100 * limits::SECTION_WEIGHT);
        for identity in [
            Kind::PutIdentity(command::PutIdentity::default()),
            Kind::DeleteIdentity(command::DeleteIdentity::default()),
        ] {
            assert_eq!(share(&rows, &identity), (Share::Identities, 0));
        }
    }
}
