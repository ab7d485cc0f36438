//! Messages of the session's queue that were granted while the client was behind: they are read from the queue when the
//! client has taken most of what it got before.

use super::context::Context;
use crate::machine::effect::Granted;
use crate::machine::read;
use crate::mailbox::Withheld;
use crate::router::Router;

/// Messages that are looked up before the mailbox is emptied again.
const PAGE_MESSAGES: usize = 16;

/// Puts the next messages into the mailbox, unless the client is still behind by `unsent` bytes. Returns whether there
/// was one.
pub(super) fn read(context: &Context, unsent: usize) -> bool {
    let (mailbox, services) = (&context.mailbox, &context.broker.services);
    let room = context.broker.settings.outbox.high_water_mark();
    if unsent >= room {
        return false;
    }
    let page = mailbox.withheld(PAGE_MESSAGES);
    let mut bytes = unsent;
    for Withheld { sequence, dup } in &page {
        if bytes >= room {
            break;
        }
        let now = services.clock.now();
        let granted = read::queued(&*services.backing, context.session, *sequence, now);
        let granted = granted.map(|granted| Granted {
            connection: mailbox.connection,
            dup: *dup,
            ..granted
        });
        bytes += granted
            .as_ref()
            .map_or(0, |granted| granted.message.payload.len());
        Router::put_withheld(mailbox, granted.as_ref());
    }
    !page.is_empty()
}
