//! What a command counts in a proposal beyond its bytes, as far as it shows by itself: all nodes carry it out, and
//! everybody waits for that.

use crate::base::limits;
use crate::base::proto::command::command::Kind;

/// Bytes that a command counts beyond those it has.
pub fn own_weight(kind: &Kind) -> usize {
    match kind {
        Kind::Acknowledge(command) => {
            let items = command.completed.len() + command.received.len() + command.released.len();
            items * limits::LOGGED_QUEUE_BYTES
        }
        Kind::Subscribe(command) => command.subscriptions.len() * limits::LOGGED_QUEUE_BYTES,
        Kind::Unsubscribe(command) => command.filters.len() * limits::LOGGED_QUEUE_BYTES,
        Kind::OpenSession(_)
        | Kind::CloseSession(_)
        | Kind::DeleteSession(_)
        | Kind::Disconnect(_) => limits::LOGGED_SESSION_BYTES,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf as _;
    use prost::Message as _;

    use super::*;
    use crate::base::ids::Incarnation;
    use crate::base::proto::command::{
        Acknowledge, CloseSession, Command, Nothing, OpenSession, Subscribe, Subscription,
        Unsubscribe,
    };
    use crate::replica::proposer::{Cursor, Proposer};
    use crate::replica::share::Share;

    fn acknowledge(items: u64) -> Kind {
        Kind::Acknowledge(Acknowledge {
            connection: 1,
            completed: (0..items / 2).collect(),
            received: (0..items / 4).collect(),
            released: vec![1; items.div_ceil(4) as usize],
        })
    }

    fn end() -> Kind {
        Kind::CloseSession(CloseSession::default())
    }

    #[test]
    fn what_is_read_and_written_for_a_command_counts() {
        let of_items = 1_000 * limits::LOGGED_QUEUE_BYTES;
        assert_eq!(own_weight(&acknowledge(1_000)), of_items);
        let open = Kind::OpenSession(OpenSession::default());
        for session in [open, end()] {
            assert_eq!(own_weight(&session), limits::LOGGED_SESSION_BYTES);
        }
        let subscribe = Kind::Subscribe(Subscribe {
            subscriptions: vec![Subscription::default(); 16],
            ..Subscribe::default()
        });
        let unsubscribe = Kind::Unsubscribe(Unsubscribe {
            filters: vec![String::new(); 16],
            ..Unsubscribe::default()
        });
        for request in [subscribe, unsubscribe] {
            assert_eq!(own_weight(&request), 16 * limits::LOGGED_QUEUE_BYTES);
        }
        assert_eq!(own_weight(&Kind::Nothing(Nothing {})), 0);
    }

    /// How many of such commands share a proposal, of many that wait.
    fn together(kind: &Kind) -> usize {
        let proposer = Proposer::default();
        proposer.begin(Incarnation(7));
        let mut cursor = Cursor::default();
        proposer.next(&mut cursor).expect("the registration");
        for _ in 0..5_000 {
            proposer.submit_deferred(kind.clone());
        }
        let mut next = proposer.next(&mut cursor).expect("a proposal").commands;
        let mut together = 0;
        while next.has_remaining() {
            Command::decode_length_delimited(&mut next).expect("a command");
            together += 1;
        }
        together
    }

    #[test]
    fn as_many_ends_of_sessions_share_a_proposal_as_may() {
        let (most, together) = (
            limits::PROPOSAL_BYTES / limits::LOGGED_SESSION_BYTES,
            together(&end()),
        );
        assert!(together <= most && together > most / 2, "{together}");
    }

    /// However it is submitted.
    #[test]
    fn as_many_acknowledgements_share_a_proposal_as_may() {
        let proposer = Proposer::default();
        proposer.begin(Incarnation(7));
        let mut cursor = Cursor::default();
        proposer.next(&mut cursor).expect("the registration");
        let most = limits::PROPOSAL_BYTES / (64 * limits::LOGGED_QUEUE_BYTES);
        let together = together(&acknowledge(64));
        assert!(together <= most && together > most / 2, "{together}");
        // Nobody can be refused them, so they close no queue by what they weigh.
        for _ in 0..10_000 {
            proposer.submit_deferred(acknowledge(64));
        }
        assert!(proposer.has_room(Share::Common));
    }
}
