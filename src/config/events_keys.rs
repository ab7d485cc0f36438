//! The keys of the section `events`.

use std::path::PathBuf;

use super::definition::section;
use super::setting::{EventHandshake, EventMode, EventSchema};

section! {
    /// Events of the life of clients.
    events: EventsConfig {
        /// The name of the namespace in events. Empty: `cluster.name`.
        namespace: String = String::new(), "";
        /// Where events come from, as they say it. Empty: `/namespaces/` and the name of the namespace.
        source: String = String::new(), "";
        /// Whether events are published over MQTT, below `$events/v1/`. Every client may subscribe to them that the
        /// rules let do so.
        mqtt: bool = false, "";
        /// How long events are kept for readers. 0: until every event subscription has them.
        keep_s: u64 = 0, "s", 0..=31_536_000;
        /// Changes of one client within this time, from the first one on, become one event that says how the client is
        /// at its end.
        coalesce_ms: u64 = 6_000, "ms", 0..=60_000;
        /// Events that are kept; with one more the oldest goes, whoever still waits for it, and is counted.
        outbox_max_events: u64 = 1_000_000, "events", 1..=100_000_000;
        /// Bytes of events that are kept; above it the oldest go in the same way.
        outbox_max_bytes: u64 = 268_435_456, "bytes", 65_536..=u64::MAX;
        /// Events that one event subscription has given up and that wait for an operator; with one more the oldest
        /// goes, and is counted.
        dead_letters_max: u64 = 100_000, "events", 1..=10_000_000;
        /// How long the number of a session's last connection is kept after its end. A session that comes back later
        /// begins above every number that has gone.
        sequence_keep_s: u64 = 2_592_000, "s", 60..=315_360_000;
        /// Sessions whose numbers are kept; with one more that goes which would go first.
        sequences_max: u64 = 10_000_000, "sessions", 1..=1_000_000_000;
        /// Who deliveries say that they come from, in the handshake and in each request. Empty: `cluster.name`.
        origin: String = String::new(), "";
        /// File with the secrets that event subscriptions name, one `name=value` in a line, on every node. A secret
        /// goes to `events.webhook_url` alone, unless URLs stand behind its name: `name https://a.example/in=value`
        /// goes to this URL and to those below it. The file is read for each request. Other users of the machine must
        /// not be able to read it.
        secrets_file: Option<PathBuf> = None, "";
        /// Directory on every node with the PEM files of CAs that event subscriptions may name. Empty: they may name
        /// none, but for `events.webhook_ca_file`.
        ca_directory: Option<PathBuf> = None, "";
        /// URL that events are sent to: the event subscription `config` of the cluster. `https://`, or `http://` to
        /// this machine. Emptying it removes nothing: `quorumq events remove config` does.
        webhook_url: String = String::new(), "";
        /// What events look like: `cloudevents` or `eventgrid`.
        webhook_schema: EventSchema = EventSchema::CloudEvents, "";
        /// How CloudEvents are sent: `batch` (lists), `structured` or `binary` (one at a time).
        webhook_mode: EventMode = EventMode::Batch, "";
        /// The types of events that are sent, in full. Empty: the four of MQTT clients.
        webhook_types: Vec<String> = Vec::new(), "";
        /// Name of the secret that is sent as a bearer token. Empty: none.
        webhook_token: String = String::new(), "";
        /// Name of the secret that requests are signed with (Standard Webhooks). Empty: they are not signed.
        webhook_signing_key: String = String::new(), "";
        /// Whether the endpoint must have said that it wants events (`required`) or is not asked (`off`).
        webhook_handshake: EventHandshake = EventHandshake::Required, "";
        /// PEM file of the CAs that may vouch for the endpoint, on every node. Empty: those of the system.
        webhook_ca_file: Option<PathBuf> = None, "";
        /// Whether events may go to another machine by plain HTTP.
        webhook_plain_http: bool = false, "";
        /// Age at which an event that could not be delivered is given up.
        ttl_min: u32 = 1_440, "min", 1..=1_440;
        /// Attempts after which an event that is refused again and again is given up.
        max_attempts: u32 = 30, "attempts", 1..=30;
        /// Events of one request.
        batch_max_events: u32 = 100, "events", 1..=5_000;
        /// Bytes of a request with more than one event.
        batch_max_bytes: u32 = 262_144, "bytes", 1_024..=1_048_576;
        /// Longest time for a request and its answer.
        timeout_s: u32 = 30, "s", 1..=300;
        /// Requests in a minute, at most; the endpoint may ask for fewer.
        rate_per_min: u32 = 6_000, "requests", 1..=60_000;
    }
}
