//! Changes of clients: several within a short time are one event, which says how things are then.

use super::Replica;
use super::events::{outbox, recording, told};
use crate::base::ids::LogIndex;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::machine::batch::Batch;
use crate::machine::events::clients::Client;
use crate::machine::events::{Events, HubEvent};
use crate::machine::schema;
use crate::machine::schema::timer::Kind as TimerKind;
use crate::machine::tables::Tables;

/// How long changes are gathered.
const WINDOW_MS: u64 = 6_000;

impl Replica {
    /// Has the owner of clients do something in a batch of its own, as a command would.
    fn with_events<R>(&mut self, act: impl FnOnce(&mut Events, &mut Batch<'_, '_>) -> R) -> R {
        self.index += 1;
        let now = self.machine.shared.meta.advance_clock(self.now, 0);
        let mut tables = Tables::new(&self.stored);
        let index = LogIndex(self.index);
        let mut batch = Batch::new(&mut self.machine.shared, &mut tables, index, now);
        let done = act(&mut self.machine.parts.events, &mut batch);
        self.machine.shared.meta.store(&mut tables);
        for (key, change) in tables.into_changes() {
            match change.value() {
                Some(value) => self.stored.insert(key, value.to_vec()),
                None => self.stored.remove(&key),
            };
        }
        self.machine.take_outputs();
        done
    }

    fn change_client(&mut self, client: &str) {
        self.with_events(|events, batch| events.client_changed(batch, client));
    }

    /// Time passes. What is due then finds this client.
    fn pass_with(&mut self, ms: u64, client: &str, found: impl Fn() -> Option<Client>) {
        self.now += ms;
        let due = (
            Millis(self.now),
            TimerKind::ClientChanged,
            client.as_bytes(),
        );
        self.with_events(|events, batch| {
            let Some(row) = batch.tables.get::<schema::PendingClient>(client) else {
                return;
            };
            let deadline = Millis(row.due_ms);
            if deadline <= due.0 {
                batch.clear_timer(deadline, due.1, due.2);
                let _ = events.client_due(batch, client, deadline, found());
            }
        });
    }
}

fn client(created: u64, updated: u64) -> Option<Client> {
    Some(Client {
        created: Millis(created),
        updated: Millis(updated),
        disabled: false,
    })
}

fn only(replica: &Replica) -> state::Event {
    let mut all = outbox(replica);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0).1
}

/// Made, then updated twice within three seconds: one event with the final values.
#[test]
fn made_and_updated_within_three_seconds_is_one_event() {
    let mut replica = recording();
    let made = replica.now;
    replica.change_client("devA");
    for _ in 0..2 {
        replica.pass_with(1_500, "devA", || client(made, made));
        replica.change_client("devA");
        // The leader dies; the next one goes on.
        replica.restart();
    }
    let updated = replica.now;
    assert!(told(&replica).is_empty());
    replica.pass_with(WINDOW_MS - 3_000 - 1, "devA", || client(made, updated));
    assert!(told(&replica).is_empty(), "the window is not over");
    replica.pass_with(1, "devA", || client(made, updated));
    let event = only(&replica);
    assert_eq!(told(&replica), ["devA ClientUpdated"]);
    assert_eq!((event.created_ms, event.updated_ms), (made, updated));
    assert_eq!(
        event.time_ms,
        made + WINDOW_MS,
        "further changes do not prolong it"
    );
}

/// Made and deleted within five seconds: deleted, although nothing else was ever sent.
#[test]
fn made_and_deleted_within_five_seconds_is_deleted() {
    let mut replica = recording();
    replica.change_client("devA");
    replica.pass_with(5_000, "devA", || None);
    replica.change_client("devA");
    replica.restart();
    replica.pass_with(1_000, "devA", || None);
    assert_eq!(told(&replica), ["devA ClientDeleted"]);
    replica.pass_with(WINDOW_MS, "devA", || None);
    assert_eq!(told(&replica).len(), 1);
}

#[test]
fn deleted_and_made_again_is_updated_with_the_new_time() {
    let mut replica = recording();
    replica.change_client("devA");
    let made = replica.now + 2_000;
    replica.pass_with(2_000, "devA", || client(made, made));
    replica.change_client("devA");
    replica.pass_with(4_000, "devA", || client(made, made));
    assert_eq!(only(&replica).created_ms, made);
}

#[test]
fn a_busy_client_is_heard_of_again_and_again() {
    let mut replica = recording();
    for _ in 0..100 {
        replica.change_client("devA");
        let now = replica.now;
        replica.pass_with(200, "devA", || client(0, now));
    }
    // 20 s of changes; each window begins with the first change after the one before.
    assert_eq!(told(&replica).len(), 3);
}

/// The machine's own timer finds no client: the identities that it would find have another owner.
#[test]
fn the_window_is_a_timer_of_the_log() {
    let mut replica = recording();
    replica.change_client("devA");
    assert_eq!(replica.machine.next_due().0, replica.now + WINDOW_MS);
    replica.restart();
    assert!(replica.machine.next_due().0 <= replica.now + WINDOW_MS);
    replica.pass(WINDOW_MS);
    replica.settle();
    assert_eq!(told(&replica), ["devA ClientDeleted"]);
}

#[test]
fn nothing_is_pending_while_nothing_is_recorded() {
    let mut replica = Replica::new();
    let before = replica.stored.len();
    replica.change_client("devA");
    assert_eq!(replica.stored.len(), before);
}

#[test]
fn events_of_the_hub_are_for_those_who_ask() {
    let event = || HubEvent {
        operation: crate::events::HubOperation::UpdateTwin,
        device: "devA",
        module: "m1",
        data: "{}".into(),
    };
    let mut replica = Replica::new();
    let published = replica.with_events(|events, batch| events.hub_event(batch, event()));
    assert!(published.is_none() && told(&replica).is_empty());
    replica.run(vec![super::events::set_events(|settings| {
        settings.mqtt = true;
        settings.keep_s = 100;
    })]);
    let published = replica.with_events(|events, batch| events.hub_event(batch, event()));
    let topic = published.expect("over MQTT").topic;
    assert_eq!(topic, "$events/v1/hub/updateTwin/devA/m1");
    assert_eq!(told(&replica), ["devA Hub"]);
}
