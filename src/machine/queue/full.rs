//! Sessions that end because their queue is full: a timer ends them with the next batch. What their end causes, such as
//! the will that fills other queues, is durable in the same way, so it is bounded per batch and the same on replicas
//! that restart in between.

use crate::base::ids::SessionId;
use crate::machine::batch::Batch;
use crate::machine::schema::timer::Kind;

/// Has a session end with the next batch; `false` when that was decided before in this batch.
pub(super) fn end_session(batch: &mut Batch<'_, '_>, session: SessionId, client_id: &str) -> bool {
    let subject = subject(session, client_id);
    if batch.timers.is_set(batch.now, Kind::QueueFull, &subject) {
        return false;
    }
    batch.set_timer(batch.now, Kind::QueueFull, &subject);
    true
}

fn subject(session: SessionId, client_id: &str) -> Vec<u8> {
    let mut subject = session.0.to_be_bytes().to_vec();
    subject.extend_from_slice(client_id.as_bytes());
    subject
}

/// Session and client id of the timer's subject.
pub(in crate::machine) fn of_subject(subject: &[u8]) -> Option<(SessionId, &str)> {
    let (session, client_id) = subject.split_first_chunk::<8>()?;
    let session = SessionId(u64::from_be_bytes(*session));
    Some((session, std::str::from_utf8(client_id).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_decodes_to_what_it_was_made_of() {
        let subject = subject(SessionId(7), "client");
        assert_eq!(of_subject(&subject), Some((SessionId(7), "client")));
        assert_eq!(of_subject(b"short"), None);
    }
}
