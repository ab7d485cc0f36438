//! What replicas must know alike to record events: the leader has its own configuration replicated where it differs
//! from what the cluster has. Followers' configurations have no effect until they lead.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use crate::base::proto::command::{self, command::Kind};
use crate::config::Config;
use crate::connection::broker::Broker;
use crate::events::settings::of_command;
use crate::machine::read_events;
use crate::raft::Raft;
use crate::replica::sequencer::Sequencer;

/// How often the leader looks whether the cluster has its settings, beside the beginning of its leadership.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the proposal may take before it is made again; it may take effect later, in the same term.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Has the settings of events replicated while this node leads.
pub(super) struct EventSettings {
    pub(super) broker: Arc<Broker>,
    pub(super) raft: Raft,
    /// What a former leader is configured with must not come after what the present one is.
    pub(super) sequencer: Sequencer,
    pub(super) command: command::SetEvents,
}

/// What this node is configured to record events with.
pub(super) fn command(config: &Config) -> command::SetEvents {
    let events = &config.events;
    command::SetEvents {
        namespace: config.event_namespace().to_owned(),
        source: config.event_source(),
        mqtt: events.mqtt,
        keep_s: events.keep_s,
        coalesce_ms: events.coalesce_ms,
        outbox_max_events: events.outbox_max_events,
        outbox_max_bytes: events.outbox_max_bytes,
        dead_letters_max: events.dead_letters_max,
        sequence_keep_s: events.sequence_keep_s,
        sequences_max: events.sequences_max,
        hub: hub_name(config).to_owned(),
        cluster_id: config.cluster.identity().as_bytes().to_vec().into(),
    }
}

/// What events of the hub call it: the first label of its first host name.
fn hub_name(config: &Config) -> &str {
    match config.hub.host_names.first() {
        Some(host) => host.split(['.', ':']).next().unwrap_or(host),
        None => config.event_namespace(),
    }
}

impl EventSettings {
    /// Proposes the settings, and waits until they are applied.
    async fn propose(&self, term: u64) {
        let command = command::Command {
            kind: Some(Kind::SetEvents(self.command.clone())),
        };
        let command = command.encode_length_delimited_to_vec();
        let appended = self.sequencer.submit_own(term, command.into()).await;
        if appended.await.is_ok() {
            let last = self.raft.last_index();
            // It fails when the node stops.
            let _ = self
                .raft
                .applied()
                .wait_for(|applied| *applied >= last)
                .await;
        }
    }

    /// Runs until the node stops.
    pub(super) async fn run(self) {
        let mut leadership = self.raft.leadership();
        let own = of_command(self.command.clone());
        loop {
            let now = *leadership.borrow_and_update();
            let backing = &*self.broker.services.backing;
            if now.is_leader && read_events::settings(backing).as_ref() != Some(&own) {
                // Where it does not succeed, it is proposed again.
                let _ = tokio::time::timeout(PROPOSAL_TIMEOUT, self.propose(now.term)).await;
            }
            let changed = tokio::time::timeout(CHECK_INTERVAL, leadership.changed()).await;
            if let Ok(Err(_)) = changed {
                return;
            }
        }
    }
}
