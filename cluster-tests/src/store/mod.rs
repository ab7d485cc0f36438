//! A state store client: requests as PUBLISHes to the invoke topic, answers on a response topic, notifications.
//!
//! Invariant: a request whose answer did not come is [`CallOutcome::Unknown`], never failed: it may have been executed.

mod client;
mod hlc;
mod notification;
mod reply;
mod request;
mod scan;

pub use client::{INVOKE, StoreClient};
pub use hlc::Hlc;
pub use notification::{Notification, hex};
pub use reply::{CallOutcome, Reply};
pub use request::{Request, blob, resp};
pub use scan::{page, parse_page, scan_all};
