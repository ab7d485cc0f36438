//! Writes of the state store on their way to the log, and how long their replies are remembered.

use crate::base::limits;
use crate::base::proto::command::command::Kind;
use crate::codec::Publish;
use crate::connection::context::{Context, Flow};
use crate::connection::requests::Request;
use crate::machine::store::{RequestIdentity, to_command};
use crate::replica::share::Share;
use crate::store::fingerprint::Fingerprint;
use crate::store::request::Write;
use crate::store::{Properties, Quota};

use super::request::StoreRequest;

/// How long a reply is remembered when the request has no message expiry (`docs/spec/state-store.md`).
const REMEMBER_S: u32 = 60;

/// The longest a reply is remembered, whatever the request's message expiry: clients repeat requests within seconds.
const REMEMBER_AT_MOST_S: u32 = 600;

/// So many replies are remembered for no longer than [`REMEMBER_S`], whatever clients ask for. Each takes some hundred
/// bytes of every node's memory.
const MANY_REPLIES: u64 = 1 << 20;

/// Bytes of correlation data and client id that are remembered with a reply while disks are nearly full, and bytes of
/// correlation data that are remembered for longer than [`REMEMBER_S`]. A request that makes room gives back more than
/// that, and others do not fill the disk soon.
pub(super) const REMEMBERED_AT_LOW_DISK: usize = 512;

/// How many seconds the reply is to be remembered of a request that has this expiry. `is_costly`: it takes much room,
/// or there is little.
pub(super) fn remember_s(expiry: Option<u32>, is_costly: bool) -> u32 {
    let longest = match is_costly {
        true => REMEMBER_S,
        false => REMEMBER_AT_MOST_S,
    };
    expiry.unwrap_or(REMEMBER_S).min(longest)
}

/// Proposes a write of the store.
pub(super) fn propose_write(
    context: &mut Context,
    publish: &Publish<'_>,
    properties: &Properties<'_>,
    write: &Write<'_>,
    request: StoreRequest,
) -> Flow {
    // A request that has to wait is offered again and again: it is not copied and hashed each time.
    let proposer = &context.broker.services.proposer;
    // Each of them is told while the log is applied.
    let watchers = context.broker.services.view.watchers_of(write.key);
    let weight = watchers * limits::LOGGED_NOTIFICATION_BYTES;
    let share = match weight > limits::MANY_NOTIFICATIONS_BYTES {
        true => Share::Watched,
        false => Share::Common,
    };
    // What is urgent has room of its own where others have to wait, unless very many are told of it.
    let share = match share {
        Share::Common if properties.high_priority && !proposer.has_room(share) => Share::Urgent,
        _ => share,
    };
    if !proposer.has_room_for(share, &context.mailbox) {
        return Flow::Retry;
    }
    let is_costly = request.correlation_data.len() > REMEMBERED_AT_LOW_DISK
        || context.broker.state.refuses_writes()
        || context.broker.services.view.remembered_replies() >= MANY_REPLIES;
    let identity = RequestIdentity {
        correlation_data: &request.correlation_data,
        remember_s: remember_s(publish.properties.message_expiry(), is_costly),
        fingerprint: Fingerprint::of(
            publish.payload,
            properties.timestamp,
            properties.fencing_token,
        ),
    };
    let quota = match context.broker.state.refuses_writes() {
        // Less than anything takes: only what does not grow is accepted.
        true => Quota {
            max_keys: 1,
            max_bytes: 1,
        },
        false => context.broker.settings.store_quota,
    };
    let command = to_command(write, &context.options.client_id, &identity, quota);
    let request = Request::Store(Box::new(request));
    context.propose_weighing(share, Kind::StoreWrite(command), request, weight)
}
