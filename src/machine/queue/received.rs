//! Packet ids of QoS 2 messages that durable sessions have sent and not released: each is taken once `[MQTT-4.3.3-10]`.

use crate::base::ids::SessionId;
use crate::machine::batch::Batch;
use crate::machine::schema::Received;

pub(in crate::machine) fn contains(
    batch: &Batch<'_, '_>,
    session: SessionId,
    packet_id: u16,
) -> bool {
    batch.tables.contains::<Received>((session, packet_id))
}

pub(in crate::machine) fn add(batch: &mut Batch<'_, '_>, session: SessionId, packet_id: u16) {
    batch.tables.put::<Received>((session, packet_id), &());
}

pub(in crate::machine) fn remove(batch: &mut Batch<'_, '_>, session: SessionId, packet_id: u16) {
    batch.tables.delete::<Received>((session, packet_id));
}

/// Packet ids whose PUBREL the session's client still owes.
pub(in crate::machine) fn all(batch: &Batch<'_, '_>, session: SessionId) -> Vec<u16> {
    first(batch, session, usize::MAX)
}

/// The first of them.
pub(in crate::machine) fn first(
    batch: &Batch<'_, '_>,
    session: SessionId,
    most: usize,
) -> Vec<u16> {
    let mut ids = Vec::new();
    let range = Received::of_session(session);
    batch.tables.scan(&range, |(_, packet_id), _| {
        ids.push(packet_id);
        ids.len() < most
    });
    ids
}
