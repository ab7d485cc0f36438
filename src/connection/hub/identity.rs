//! What is known of a device or a module that is connected.

use super::topics::OwnTopics;
use crate::registry::IdentityId;

/// A device or a module that has shown to be itself.
#[derive(Debug)]
pub(in crate::connection) struct HubIdentity {
    /// Who it is.
    pub(in crate::connection) id: IdentityId,
    /// Tells it from former identities of its id.
    pub(in crate::connection) generation: u64,
    /// The credential that it has shown, as the log names it.
    pub(in crate::connection) fingerprint: Vec<u8>,
    /// The model that its client announces, if it does.
    pub(in crate::connection) model_id: Option<String>,
    /// How many retained messages it may have (`hub.max_retained`).
    pub(in crate::connection) max_retained: u32,
    /// Its topics.
    pub(super) topics: OwnTopics,
}

impl HubIdentity {
    /// An identity whose credential holds.
    pub(super) fn new(
        id: IdentityId,
        generation: u64,
        fingerprint: &[u8],
        model_id: String,
        max_retained: u32,
    ) -> HubIdentity {
        HubIdentity {
            topics: OwnTopics::new(&id),
            id,
            generation,
            fingerprint: fingerprint.to_vec(),
            max_retained,
            model_id: Some(model_id).filter(|model_id| !model_id.is_empty()),
        }
    }
}
