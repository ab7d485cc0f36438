//! How an event subscription stands: whether its endpoint has said that it wants events, and what an operator is shown.

use bytes::Bytes;
use prost::Message as _;

use super::options::{Handshake, State};
use crate::base::proto::state::{EventConsent, EventSubscription, EventSubscriptionOptions};
use crate::base::time::Millis;

/// How long consent holds.
pub(super) const CONSENT_MS: u64 = 24 * 60 * 60 * 1_000;

/// The consent of an endpoint, if it holds.
pub(super) fn consent(
    row: &EventSubscription,
    options: &EventSubscriptionOptions,
    now: Millis,
) -> Option<EventConsent> {
    let consent = EventConsent::decode(row.consent.as_ref()).ok()?;
    let is_for_this = consent.url == options.url
        && consent.origin == options.origin
        && consent.schema == options.schema;
    let is_given = consent.given_ms != 0 && now.since(Millis(consent.given_ms)) < CONSENT_MS;
    (is_for_this && is_given).then_some(consent)
}

/// Whether events may be sent without asking the endpoint first.
pub fn has_consent(
    row: &EventSubscription,
    options: &EventSubscriptionOptions,
    now: Millis,
) -> bool {
    Handshake::of(options.handshake) == Handshake::Off || consent(row, options, now).is_some()
}

/// Requests per minute that may be made.
pub fn rate(row: &EventSubscription, options: &EventSubscriptionOptions, now: Millis) -> u32 {
    let own = options.rate_per_min.max(1);
    match consent(row, options, now) {
        Some(consent) if consent.rate_per_min != 0 => own.min(consent.rate_per_min),
        _ => own,
    }
}

/// Consent as it stands in a row.
pub fn consent_row(
    options: &EventSubscriptionOptions,
    rate_per_min: Option<u32>,
    now: Millis,
) -> Bytes {
    EventConsent {
        url: options.url.clone(),
        origin: options.origin.clone(),
        schema: options.schema,
        given_ms: now.0.max(1),
        rate_per_min: rate_per_min.unwrap_or(0),
    }
    .encode_to_vec()
    .into()
}

/// How an event subscription stands, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Events are delivered.
    Active,
    /// Its endpoint has not said that it wants events.
    AwaitingConsent,
    /// Its endpoint is down, or set up wrongly.
    BackingOff,
    /// Its endpoint has said that it is gone; an operator may resume it.
    Gone,
    /// An operator has paused it.
    Paused,
}

impl Standing {
    /// All of them.
    pub const ALL: [Standing; 5] = [
        Standing::Active,
        Standing::AwaitingConsent,
        Standing::BackingOff,
        Standing::Gone,
        Standing::Paused,
    ];

    /// As the rows say.
    pub fn of(
        row: &EventSubscription,
        options: &EventSubscriptionOptions,
        now: Millis,
    ) -> Standing {
        match State::of(row.state) {
            State::Paused => Standing::Paused,
            State::Gone => Standing::Gone,
            State::Active if !has_consent(row, options, now) => Standing::AwaitingConsent,
            State::Active if !row.last_error.is_empty() => Standing::BackingOff,
            State::Active => Standing::Active,
        }
    }

    /// As operators read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Active => "active",
            Standing::AwaitingConsent => "awaiting_consent",
            Standing::BackingOff => "backing_off",
            Standing::Gone => "gone",
            Standing::Paused => "paused",
        }
    }
}
