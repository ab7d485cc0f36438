//! Bounds of what an operator can set, and of the administration requests, each with its reason.

use crate::base::limits;

/// Largest node number: it is written as five digits where versions name their node, and stays a positive
/// 32-bit number in every client.
pub const MAX_NODE_ID: u64 = 99_999;

/// Largest MQTT packet that is read. MQTT allows 256 MiB, but what a packet brings must fit into one proposal
/// ([`limits::LARGEST_PROPOSAL_BYTES`]) beside what it shares that with: a batch of messages to another node that was
/// not full, a proposal that was not full, and the names of fields.
pub const LARGEST_PACKET_BYTES: u64 = 56 << 20;

const _: () = assert!(
    LARGEST_PACKET_BYTES as usize
        + limits::MESSAGE_BATCH_BYTES
        + limits::PROPOSAL_BYTES
        + (1 << 20)
        < limits::LARGEST_PROPOSAL_BYTES,
    "a PUBLISH fits into a proposal"
);

/// Default of the largest packet that is read. One MiB carries every message of an ordinary application, and one
/// connection cannot take the memory of a thousand.
pub const DEFAULT_MAX_PACKET_BYTES: u32 = 1_048_576;

/// Most levels of a topic name or filter: what one filter with a wildcard costs in the index is bounded by it.
pub const MOST_TOPIC_LEVELS: u64 = crate::topic::MAX_FILTER_LEVELS as u64;

/// Longest topic name or filter `[MQTT-4.7.3-3]`.
pub const LONGEST_TOPIC_BYTES: u64 = crate::topic::MAX_TOPIC_BYTES as u64;

/// The least bound of client identifiers: a module's may have 257 bytes, one that this server assigns has 37, and 23
/// must be accepted in any case `[MQTT-3.1.3-5]`.
pub const LEAST_CLIENT_ID_BYTES: u64 = 257;

/// Longest client identifier that a CONNECT can have `[MQTT-1.5.4-1]`.
pub const LONGEST_CLIENT_ID_BYTES: u64 = 65_535;

/// Most connections of a node. Clients have many addresses, so ports are no bound; descriptors of a process are.
pub const MOST_CONNECTIONS: u64 = 4_000_000;

/// How many times `mqtt.outbox_max_bytes` a connection needs: four times and a message are what may wait for it, see
/// [`crate::base::limits::OUTBOX_OVERRUN`]; as much, less one read, is read, so that what it acknowledges is found
/// behind more.
pub const CONNECTION_MEMORY_OUTBOXES: usize = 10;

/// The least that `mqtt.connection_memory_bytes` may be: room for requests and acknowledgements of a client whose
/// packets are small.
pub const LEAST_CONNECTION_MEMORY_BYTES: usize = 2 << 20;

/// Most keys on one SCAN page: the page is one message, and other requests wait while it is built.
pub const MOST_SCAN_PAGE_KEYS: u64 = 10_000;

/// Most threads: no machine has more cores, and threads beyond the cores only cost.
pub const MOST_WORKER_THREADS: u64 = 1_024;

/// Largest configuration file that is read: a typo that names a core dump must not fill the memory.
pub const LARGEST_CONFIG_FILE_BYTES: u64 = 1_048_576;

/// Largest body of an administration request; the largest one in use has less than a hundred bytes.
pub const LARGEST_ADMIN_BODY_BYTES: usize = 65_536;

/// Time after which an administration request is answered in any case. A membership change may take longer, because a
/// new member has to catch up; the caller then follows it in the cluster's status.
pub const ADMIN_REQUEST_TIMEOUT_S: u64 = 30;

/// Longest text of `mqtt.response_information`: it is sent with CONNACK and begins topic names.
pub const LONGEST_RESPONSE_INFORMATION_BYTES: usize = 1_024;

/// Largest file of users that is read, some 400,000 users; it is kept in memory.
pub const LARGEST_USERS_FILE_BYTES: u64 = 64 << 20;

/// Most memory that a setting may ask for: 64 TiB, more than any machine has.
pub const MOST_MEMORY_BYTES: u64 = 1 << 46;

/// Most memory for metadata of keys: above it a table that grows moves so many entries that others would notice.
pub const MOST_METADATA_CACHE_BYTES: u64 = 8 << 30;
