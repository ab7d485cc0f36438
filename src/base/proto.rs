//! Messages generated from `proto/`: what nodes say to each other, what the log holds, what tables hold.

/// `proto/command.proto`: what the Raft log holds.
#[allow(missing_docs, clippy::all)]
pub mod command {
    tonic::include_proto!("quorumq.command.v1");
}

/// `proto/state.proto`: values of the replicated tables.
#[allow(missing_docs, clippy::all)]
pub mod state {
    tonic::include_proto!("quorumq.state.v1");
}

/// `proto/cluster.proto`: proposals and messages between nodes.
#[allow(missing_docs, clippy::all)]
pub mod cluster {
    tonic::include_proto!("quorumq.cluster.v1");
}

/// `proto/raft.proto`: what replicas say to each other.
#[allow(missing_docs, clippy::all)]
pub mod raft {
    tonic::include_proto!("quorumq.raft.v1");
}

/// The shapes of the messages of `proto/command.proto`, for checks without decoding.
pub mod command_schema {
    use crate::base::wire::{Field, FieldKind, Schema};

    include!(concat!(env!("OUT_DIR"), "/command_schema.rs"));
}
