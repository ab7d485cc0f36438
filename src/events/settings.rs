//! What all replicas must know alike to record events.

use crate::base::proto::{command, state};

/// The row that a leader's command makes.
pub fn of_command(command: command::SetEvents) -> state::EventSettings {
    state::EventSettings {
        namespace: command.namespace,
        source: command.source,
        mqtt: command.mqtt,
        keep_s: command.keep_s,
        coalesce_ms: command.coalesce_ms,
        outbox_max_events: command.outbox_max_events,
        outbox_max_bytes: command.outbox_max_bytes,
        dead_letters_max: command.dead_letters_max,
        sequence_keep_s: command.sequence_keep_s,
        sequences_max: command.sequences_max,
        cluster_id: command.cluster_id,
        hub: command.hub,
    }
}
