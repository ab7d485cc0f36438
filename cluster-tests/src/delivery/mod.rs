//! Publishers and durable subscribers that write down what they were told and what arrived, and move to another node
//! when theirs dies; [`crate::check::delivery`] and [`crate::check::redelivery`] judge what they wrote.
//!
//! * [`label`] marks every message with who sent it, at which QoS, and as which in its order.
//! * [`record`] is what clients write down.
//! * [`publisher`] and [`subscriber`] are one client each; [`failover_client`] finds them a node.
//! * [`load`] runs many of them; [`trial`] runs them on a cluster that has something done to it.

pub mod failover_client;
pub mod label;
pub mod load;
pub mod publisher;
pub mod record;
mod signals;
pub mod subscriber;
pub mod trial;
