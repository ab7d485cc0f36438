//! Judges of histories. Each knows one rule of `docs/spec/invariants.md` and names it when it is broken.

pub mod delivery;
pub mod kv;
pub mod linearizable;
pub mod redelivery;
