//! What one turn of a connection does, and what follows from what it has shown.

use std::time::Duration;

use super::*;
use crate::base::ids::{ConnectionId, SessionId};
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::codec::frame;
use crate::connection::coordinator::Connection;
use crate::connection::hub::notifying::notify;
use crate::connection::options::Opened;
use crate::machine::hub::{DesiredChanged, rows_of_reported, rows_of_twin};
use crate::mailbox::{Contents, Item, Notifications};
use crate::twin::{EncodedSection, Section};

impl Device {
    /// The device has desired properties, written so often, with a text of this length.
    fn with_desired(mut self, writes: u64, length: usize) -> Device {
        let body = format!(
            "{{\"a\":[\"{}\"]}}",
            vec!["x".repeat(4_000); length / 4_000].join("\",\"")
        );
        let mut section = Section::default();
        for _ in 0..writes {
            let members = request::reported_patch(body.as_bytes()).expect("it breaks no rule");
            let next = section.replaced(members, Millis(1), u64::MAX);
            section = next.expect("it is not bounded");
        }
        let id = &self.hub.state.as_ref().expect("an identity").identity.id;
        let rows = rows_of_twin(
            id,
            &state::Identity::default(),
            EncodedSection::of(&section),
        );
        let broker = Arc::get_mut(&mut self.context.broker).expect("no other connection");
        broker.services.backing = Arc::new(rows);
        self
    }
}

fn change(version: u64) -> DesiredChanged {
    DesiredChanged {
        connection: ConnectionId(1),
        version,
        body: format!("of {version}"),
        before: EncodedSection::default(),
        after: EncodedSection::default(),
    }
}

/// However many GETs are due, and however much their twins hold, others have their turn in between.
#[test]
fn a_turn_reads_so_much_for_gets() {
    let mut large = Device::new(Version::V311).with_desired(1, 180_000);
    let mut small = Device::new(Version::V311).with_desired(1, 4_000);
    for (device, turns) in [(&mut large, 16), (&mut small, 1)] {
        for packet_id in 1..=16 {
            assert_eq!(device.publish(GET, packet_id, b""), Flow::Continue);
        }
        (0..16).for_each(|request_id| device.passed(request_id));
        let mut taken = 0;
        while device.hub.has_due() {
            assert!(device.answered() > 0);
            let sent = device.sent().len();
            assert!(sent < TURN_BYTES + 210_000, "{sent} bytes in one turn");
            taken += 1;
        }
        assert_eq!((taken, device.waiting()), (turns, 0));
    }
}

impl Device {
    /// How many patches that change nothing are taken, from this packet id on.
    fn patches_taken(&mut self, mut ids: std::ops::Range<u16>) -> usize {
        ids.position(|id| self.publish(PATCH, id, b"{}") == Flow::Retry)
            .expect("not all are taken")
    }
}

/// A patch of a few bytes is as much work as the section that it changes: as it is, or as patches before it make it.
#[test]
fn a_patch_weighs_its_section_and_what_is_under_way() {
    let members: Vec<String> = (0..8_000)
        .map(|key| format!("\"{key:04x}\":{{}}"))
        .collect();
    let large = format!("{{{}}}", members.join(","));
    let patch = request::reported_patch(large.as_bytes()).expect("it breaks no rule");
    let mut section = Section::default();
    for version in 0..2 {
        let merged = section.merged(patch.clone(), Millis(version), u64::MAX);
        section = merged.expect("it is not bounded");
    }
    let section = EncodedSection::of(&section);
    let encoded = encoding::encode_patch(&patch).len();
    assert!(section.0.len() <= encoded * limits::PATCH_GROWTH);
    // It is stored.
    let mut device = Device::new(Version::V311);
    let id = IdentityId::device("devA").expect("an id");
    let stored = section.0.len() * limits::SECTION_WEIGHT;
    let broker = Arc::get_mut(&mut device.context.broker).expect("no other connection");
    broker.services.backing = Arc::new(rows_of_reported(&id, section));
    let most = limits::PROPOSAL_BYTES / stored + 1;
    assert_eq!(device.patches_taken(1..17), most);
    device.replied(0, Reported::Patched(3));
    assert_eq!(device.patches_taken(8..17), 1, "one has been answered");
    // It is about to be.
    let mut device = Device::new(Version::V311);
    assert_eq!(device.publish(PATCH, 1, large.as_bytes()), Flow::Continue);
    let most = limits::PROPOSAL_BYTES / (encoded * limits::PATCH_GROWTH * limits::SECTION_WEIGHT);
    assert_eq!(device.patches_taken(2..17), most);
    (0..=most as u32).for_each(|request_id| device.replied(request_id, Reported::Patched(2)));
    assert_eq!(
        device.hub.state.as_ref().map(|state| state.under_way),
        Some(Load::default())
    );
    // Small ones may be under way as before.
    let mut device = Device::new(Version::V311);
    assert_eq!(device.patches_taken(1..18), MOST_REQUESTS);
}

/// The rows of a write are there before its notification is.
#[test]
fn what_a_get_has_shown_is_not_told_again() {
    let mut device = Device::new(Version::V311).with_desired(3, 4_000);
    let told = |device: &mut Device, versions: std::ops::RangeInclusive<u64>| {
        let mut waiting = Notifications::of(versions.map(change));
        assert!(notify(&mut device.context, &mut waiting, device.hub.shown()).is_ok());
        String::from_utf8_lossy(&device.sent()).into_owned()
    };
    assert!(
        told(&mut device, 2..=2).ends_with("of 2"),
        "no GET was answered"
    );
    device.publish(GET, 1, b"");
    device.passed(0);
    assert_eq!(device.answered(), 1);
    assert!(String::from_utf8_lossy(&device.sent()).contains("\"$version\":4}"));
    assert_eq!(told(&mut device, 3..=4), "", "it has both");
    let later = told(&mut device, 4..=5);
    assert!(
        later.ends_with("of 5") && !later.contains("of 4"),
        "{later}"
    );
}

/// Libraries take a failure for the last word.
#[test]
fn nothing_is_said_while_disks_are_nearly_full() {
    let mut device = Device::new(Version::V311);
    device.context.broker.state.set_refuses_writes(true);
    assert_eq!(device.publish(PATCH, 1, b"{}"), Flow::Retry);
    assert_eq!(device.sent(), [0; 0]);
    assert_eq!(
        device.publish(GET, 2, b""),
        Flow::Continue,
        "nothing is stored"
    );
    device.passed(0);
    assert_eq!(device.answered(), 1);
    device.context.broker.state.set_refuses_writes(false);
    assert_eq!(device.publish(PATCH, 1, b"{}"), Flow::Continue);
}

/// Of what is in the mailbox together, whatever came first: a client that reads its twin hears of nothing older then.
#[test]
fn notifications_go_out_before_a_twin_is_read() {
    let Device { context, .. } = Device::new(Version::V311).with_desired(2, 4_000);
    let state = &context.broker.state;
    state.set_registered(true);
    let forever = Elapsed::from_duration(Duration::MAX);
    state.contact().hold_until(forever);
    let (broker, mailbox) = (context.broker.clone(), context.mailbox.clone());
    let opened = Opened {
        session: SessionId(1),
        is_durable: true,
        receive_maximum: 10,
        received: Vec::new(),
        rights: context.rights,
    };
    let mut connection =
        Connection::new(broker, mailbox.clone(), context.options, opened, Vec::new());
    let topic_length = (GET.len() as u16).to_be_bytes();
    let body = [&topic_length, GET.as_bytes(), &[0, 5]].concat();
    let packet = [&[0x32, body.len() as u8], &body[..]].concat();
    let found = frame::next(&packet, u32::MAX).expect("well-formed");
    let flow = connection.handle_frame(found.expect("whole"));
    assert_eq!(flow, Ok(Flow::Continue));
    mailbox.push_item(Item::BarrierPassed(0));
    for version in 2..=3 {
        mailbox.push_desired(change(version));
    }
    assert!(connection.drain_mailbox(&mut Contents::default()).is_ok());
    let sent = std::mem::take(&mut connection.context_mut().output.packets().bytes);
    let sent = String::from_utf8_lossy(&sent);
    let places = ["of 2", "of 3", "$iothub/twin/res/200/"].map(|text| sent.find(text));
    assert!(
        places.is_sorted() && places[0].is_some(),
        "{places:?} {sent}"
    );
}
