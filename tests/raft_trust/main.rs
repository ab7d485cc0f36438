//! Replicas that prove to each other who they are: a hostile peer changes nothing and stops nobody, whichever message
//! it sends, and certificates and their authority are replaced while the cluster runs.

#[path = "../authority/mod.rs"]
mod authority;
#[path = "../directory/mod.rs"]
mod directory;
mod leading;
#[path = "../liar/mod.rs"]
mod liar;
mod membership;
mod messages;
mod proved;
#[path = "../raft_support/mod.rs"]
mod raft_support;
mod rotation;
