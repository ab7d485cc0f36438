//! Outer bounds of what an operator can set, each with its reason; and the bounds of the HTTP port.

/// Largest node number: it is written as five digits where versions name their node, and stays a positive
/// 32-bit number in every client.
pub const MAX_NODE_ID: u64 = 99_999;

/// Largest MQTT packet: the remaining length field holds 268,435,455, its fixed header five bytes
/// (MQTT 5, 2.1.4).
pub const LARGEST_PACKET_BYTES: u64 = 268_435_460;

/// Packets that are read unless the operator says otherwise: one MiB carries every message of an ordinary
/// application and keeps one connection from holding the memory of a thousand.
pub const DEFAULT_MAX_PACKET_BYTES: u32 = 1_048_576;

/// More connections than one address has ports for are possible, more than a process has descriptors for are not.
pub const MOST_CONNECTIONS: u64 = 4_000_000;

/// Keys on one SCAN page: the page is one message and is built while other requests wait.
pub const MOST_SCAN_PAGE_KEYS: u64 = 10_000;

/// Threads: beyond the cores of the largest machines every further one only costs.
pub const MOST_WORKER_THREADS: u64 = 1_024;

/// Largest configuration file that is read: a typo that names a core dump must not fill the memory.
pub const LARGEST_CONFIG_FILE_BYTES: u64 = 1_048_576;

/// Largest body an administration request may have; the largest one in use has below a hundred bytes.
pub const LARGEST_ADMIN_BODY_BYTES: usize = 65_536;

/// Time an administration request may take before its caller is told so; a membership change waits for a
/// follower to catch up, which the caller continues to watch in the status.
pub const ADMIN_REQUEST_TIMEOUT_S: u64 = 30;

/// Longest text of `mqtt.response_information`: what is made of it is sent with CONNACKs and begins topic names.
pub const LONGEST_RESPONSE_INFORMATION_BYTES: usize = 1_024;

/// Largest file of users that is read, some 400,000 of them; it is kept in memory.
pub const LARGEST_USERS_FILE_BYTES: u64 = 64 << 20;
