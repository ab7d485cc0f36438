//! The answers to the last patches of an identity: one that is sent again is answered as the first time, and not
//! carried out again.
//!
//! They are in a row of the identity, oldest first. The oldest goes when there is one more than [`MOST`], and all go
//! with the identity. Each is forgotten after [`REMEMBERED_MS`] of served time
//! ([`crate::machine::meta::Meta::served`]): clients that begin alike with each run send what looks like a request of a
//! former run, and that it came again says nothing of which of them was answered. Without power no time is served, so
//! whoever comes back after an outage of any length gets its answer.
//!
//! Invariant: the answer to any of an identity's last [`MOST`] patches with QoS 1 is known for at least a minute after
//! it was given, or after the cluster has come back.

use bytes::Bytes;

use super::outcome::Reported;
use crate::base::time::Millis;

/// Answers that are remembered of one identity. More patches than a client may have under way, and than clients send
/// without an answer.
pub(super) const MOST: usize = 64;

/// For how long: a minute, beside the longest one that is counted of an outage.
const REMEMBERED_MS: u64 = 120_000;

/// What of a request's fingerprint is kept. A client whose requests collide harms itself alone.
const FINGERPRINT_BYTES: usize = 8;

const TIME_BYTES: usize = 8;

const BYTES: usize = FINGERPRINT_BYTES + TIME_BYTES + Reported::BYTES;

fn kept_of(fingerprint: &[u8]) -> [u8; FINGERPRINT_BYTES] {
    let first = fingerprint.first_chunk();
    first.copied().unwrap_or_default()
}

/// When an answer was given, and the answer.
fn given(answer: &[u8]) -> Option<(Millis, &[u8])> {
    let (time, reported) = answer.split_first_chunk::<TIME_BYTES>()?;
    Some((Millis(u64::from_be_bytes(*time)), reported))
}

fn is_known(at: Millis, now: Millis) -> bool {
    now.0.saturating_sub(at.0) <= REMEMBERED_MS
}

/// The last answer to a request, if it is known at this served time.
pub(super) fn find(answers: &[u8], fingerprint: &[u8], now: Millis) -> Option<Reported> {
    let kept = kept_of(fingerprint);
    let mut newest_first = answers.rchunks_exact(BYTES);
    let answer = newest_first.find_map(|answer| answer.strip_prefix(&kept))?;
    let (at, reported) = given(answer)?;
    is_known(at, now).then(|| Reported::decode(reported))?
}

/// The answers with one more that is given at a served time, without those that are forgotten.
pub(super) fn remember(
    answers: &[u8],
    fingerprint: &[u8],
    now: Millis,
    reported: Reported,
) -> Bytes {
    let is_forgotten = |answer: &&[u8]| {
        let given = given(&answer[FINGERPRINT_BYTES..]);
        given.is_none_or(|(at, _)| !is_known(at, now))
    };
    let forgotten = answers.chunks_exact(BYTES).take_while(is_forgotten).count();
    let known = answers.len() / BYTES - forgotten;
    let kept = &answers[answers.len() - known.min(MOST - 1) * BYTES..];
    let time = now.0.to_be_bytes();
    [kept, &kept_of(fingerprint), &time, &reported.encode()]
        .concat()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(number: u64) -> Vec<u8> {
        number.to_be_bytes().repeat(2)
    }

    #[test]
    fn the_last_ones_are_known() {
        let now = Millis(7);
        let mut answers = Bytes::new();
        for number in 0..200 {
            let reported = Reported::Patched(number);
            answers = remember(&answers, &fingerprint(number), now, reported);
            for known in 0..=number {
                let expected = (number - known < MOST as u64).then_some(Reported::Patched(known));
                assert_eq!(find(&answers, &fingerprint(known), now), expected);
            }
            assert!(answers.len() <= MOST * BYTES);
        }
        let again = remember(&answers, &fingerprint(150), now, Reported::Precondition);
        assert_eq!(
            find(&again, &fingerprint(150), now),
            Some(Reported::Precondition)
        );
    }

    #[test]
    fn each_is_known_for_a_time() {
        let mut answers = Bytes::new();
        for number in 0..10 {
            let (now, reported) = (Millis(number * 30_000), Reported::Patched(number));
            answers = remember(&answers, &fingerprint(number), now, reported);
            for known in 0..=number {
                let expected = (number - known <= 4).then_some(Reported::Patched(known));
                assert_eq!(find(&answers, &fingerprint(known), now), expected);
            }
            assert!(answers.len() <= 5 * BYTES, "the others take no room");
        }
    }
}
