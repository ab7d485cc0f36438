//! State-store writes as the log holds them.

use bytes::Bytes;

use crate::base::hlc::{Hlc, MAX_COUNTER, NodeName};
use crate::base::proto::command;
use crate::store::fingerprint::Fingerprint;
use crate::store::{Condition, Quota, StoreError, Write, WriteAction};

impl From<&Hlc> for command::Hlc {
    fn from(hlc: &Hlc) -> Self {
        command::Hlc {
            wall_ms: hlc.wall_ms,
            counter: hlc.counter,
            node: hlc.node.as_str().to_owned(),
        }
    }
}

fn hlc(hlc: &command::Hlc) -> Result<Hlc, StoreError> {
    let node = NodeName::new(&hlc.node).map_err(|_| StoreError::MalformedTimestamp)?;
    // No client gets it so far, but a row that holds it can't be read.
    if hlc.counter > MAX_COUNTER {
        return Err(StoreError::MalformedTimestamp);
    }
    Ok(Hlc {
        wall_ms: hlc.wall_ms,
        counter: hlc.counter,
        node,
    })
}

/// The verbs of `command.StoreWrite`.
mod verb {
    pub const SET: u32 = 0;
    pub const DEL: u32 = 1;
    pub const VDEL: u32 = 2;
}

pub(super) fn quota_of(command: &command::StoreWrite) -> Quota {
    let bound = |most| if most == 0 { u64::MAX } else { most };
    Quota {
        max_keys: bound(command.max_keys),
        max_bytes: bound(command.max_bytes),
    }
}

/// A request as the log holds it.
pub fn to_command(
    write: &Write<'_>,
    client_id: &str,
    request: &RequestIdentity<'_>,
    quota: Quota,
) -> command::StoreWrite {
    let mut command = command::StoreWrite {
        client_id: client_id.to_owned(),
        correlation_data: Bytes::copy_from_slice(request.correlation_data),
        remember_s: request.remember_s,
        legacy_fingerprint: request.fingerprint.legacy,
        fingerprint: Bytes::copy_from_slice(&request.fingerprint.stable),
        key: Bytes::copy_from_slice(write.key),
        timestamp: write.timestamp.as_ref().map(Into::into),
        fencing_token: write.fencing_token.as_ref().map(Into::into),
        ..Default::default()
    };
    match write.action {
        WriteAction::Set {
            value,
            condition,
            expire_ms,
        } => {
            command.verb = verb::SET;
            command.value = Bytes::copy_from_slice(value);
            command.condition = match condition {
                Condition::None => 0,
                Condition::Nx => 1,
                Condition::Nex => 2,
            };
            command.expire_ms = expire_ms.unwrap_or(0);
            command.max_keys = quota.max_keys;
            command.max_bytes = quota.max_bytes;
        }
        WriteAction::Del => command.verb = verb::DEL,
        WriteAction::VDel { value } => {
            command.verb = verb::VDEL;
            command.value = Bytes::copy_from_slice(value);
        }
    }
    command
}

/// What makes a request the same request when it is sent again.
#[derive(Clone, Copy, Debug)]
pub struct RequestIdentity<'a> {
    /// Its correlation data.
    pub correlation_data: &'a [u8],
    /// How long its reply is remembered, seconds.
    pub remember_s: u32,
    /// Fingerprint of payload, `__ts` and `__ft`.
    pub fingerprint: Fingerprint,
}

pub(super) fn from_command(command: &command::StoreWrite) -> Result<Write<'_>, StoreError> {
    let action = match (command.verb, command.condition) {
        (verb::SET, condition @ 0..=2) => WriteAction::Set {
            value: &command.value,
            condition: match condition {
                0 => Condition::None,
                1 => Condition::Nx,
                _ => Condition::Nex,
            },
            expire_ms: (command.expire_ms != 0).then_some(command.expire_ms),
        },
        (verb::DEL, _) => WriteAction::Del,
        (verb::VDEL, _) => WriteAction::VDel {
            value: &command.value,
        },
        _ => return Err(StoreError::UnknownCommand),
    };
    Ok(Write {
        key: &command.key,
        action,
        timestamp: command.timestamp.as_ref().map(hlc).transpose()?,
        fencing_token: command.fencing_token.as_ref().map(hlc).transpose()?,
    })
}
