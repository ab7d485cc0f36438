//! Reading a twin for the device or the module that it is of.

use super::answers::{Answer, Failure};
use super::identity::HubIdentity;
use crate::connection::context::Context;
use crate::machine::hub::read;
use crate::twin::device_view;

/// What was read for a GET.
pub(super) struct ReadTwin {
    /// The answer.
    pub(super) answer: Answer,
    /// The version of the desired properties in it.
    pub(super) desired: u64,
    /// Bytes that were read and made.
    pub(super) bytes: usize,
}

/// The twin as its own device or module sees it.
pub(super) fn read_twin(context: &Context, identity: &HubIdentity) -> ReadTwin {
    let failed = |text: &str| ReadTwin {
        answer: Answer::Failed(Failure::Internal, text.to_owned()),
        desired: 0,
        bytes: 0,
    };
    let backing = &*context.broker.services.backing;
    let Some(twin) = read::twin(backing, &identity.id) else {
        // It was deleted, and this connection is about to end.
        return failed("the identity is gone");
    };
    let stored = twin.desired.0.len() + twin.reported.0.len();
    let view = device_view(&twin.desired, &twin.reported);
    match view.and_then(|view| Ok((view, twin.desired.head()?))) {
        Ok((view, (desired, _))) => ReadTwin {
            bytes: stored + view.len(),
            answer: Answer::Twin(view),
            desired,
        },
        Err(error) => {
            tracing::error!(%error, identity = %identity.id, "a twin can't be read");
            failed("the twin can't be read; see the broker's log")
        }
    }
}
