//! A connection whose client's packets have to wait, because what it has under way weighs much.

use super::*;
use crate::base::ids::LogIndex;
use crate::base::limits;
use crate::machine::effect::Reply;
use crate::mailbox::{Contents, Item};

impl Client {
    /// Everybody else's commands would wait behind its own, of which as many may be under way as there are packet ids.
    fn crowded() -> Client {
        let mut client = Client::new();
        let day = Duration::from_secs(86_400);
        let lease = client.broker.state.routing_lease();
        lease.renew(elapsed_now().plus(day));
        let context = client.connection.context_mut();
        Arc::make_mut(&mut context.options.bounds).receive_maximum = u16::MAX;
        client
    }

    /// Sends as many packets as may be under way, and another one, which waits. Tells how many requests there are.
    fn send_one_too_many(&mut self, packet: &[u8], most: usize) -> usize {
        self.send(&packet.repeat(most));
        assert!(!self.input.is_waiting());
        self.send(packet);
        assert_eq!(self.offer_again(), Ok(Turn::Done));
        assert!(self.input.is_waiting(), "nothing is applied");
        self.connection.context().requests.len()
    }

    /// Something comes to its mailbox, and what waits goes on. Tells how many requests there are.
    fn goes_on(&mut self, items: impl IntoIterator<Item = Item>) -> usize {
        for item in items {
            self.connection.context().mailbox.push_item(item);
        }
        let drained = self.connection.drain_mailbox(&mut Contents::default());
        drained.expect("the connection goes on");
        assert_eq!(self.offer_again(), Ok(Turn::Done));
        assert!(!self.input.is_waiting());
        self.connection.context().requests.len()
    }
}

#[test]
fn p12_a_subscribe_or_unsubscribe_that_waits_for_weight_goes_on_when_that_is_applied() {
    const UNSUBSCRIBE: &[u8] = b"\xa2\x06\0\x06\0\0\x01a";
    let mut client = Client::crowded();
    let most = limits::CLIENT_WEIGHT_UNDER_WAY / limits::LOGGED_QUEUE_BYTES;
    assert_eq!(client.send_one_too_many(SUBSCRIBE, most), most);
    let subscribed = Reply::Subscribed {
        index: LogIndex(9),
        new: vec![true],
        refused: Vec::new(),
    };
    assert_eq!(client.goes_on([Item::Reply(0, subscribed)]), most);
    assert_eq!(client.send_one_too_many(UNSUBSCRIBE, most), 2 * most);
    let reply = Reply::Unsubscribed(vec![true]);
    assert_eq!(client.goes_on([Item::Reply(most as u32, reply)]), 2 * most);
}

/// The message that is applied may have to wait for a subscriber yet.
#[test]
fn p12_a_message_that_waits_for_weight_goes_on_when_that_is_applied() {
    let mut client = Client::crowded();
    client.connection.context().subscribe_durably();
    let most =
        limits::CLIENT_WEIGHT_UNDER_WAY / (limits::QUEUES_AT_LEAST * limits::LOGGED_QUEUE_BYTES);
    assert_eq!(client.send_one_too_many(&publish(1), most), most);
    let reply = Item::Reply(0, Reply::Published { matched: true });
    let items = [Item::AckDeferred(0), reply];
    assert_eq!(client.goes_on(items), most + 1, "the first one waits");
}
