//! Publishers and durable subscribers that record every packet ([`crate::record`]), and fail over to another node when
//! theirs dies. [`crate::check::delivery`] and [`crate::check::redelivery`] judge the records.
//!
//! * [`publisher`] and [`subscriber`] are one client each; [`failover_client`] finds them a node.
//! * [`load`] runs many of them and steers them by `signals`; [`trial`] runs a load on a cluster with a fault.

pub mod failover_client;
pub mod load;
pub mod publisher;
mod signals;
pub mod subscriber;
pub mod trial;
