//! The memory of answers that are made and not yet read by their clients, of all connections together.
//!
//! Invariant: the answers of more than [`SMALL_BYTES`] that are held have no more bytes together than the memory was
//! made for. Each has its place until the last reference to its bytes is gone, in whichever buffer that is. The server
//! loop bounds how long a client may take to read one.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers that have no more bytes need no place: each connection has one.
const SMALL_BYTES: usize = 16 << 10;

/// What places are counted in.
const UNIT: usize = 1 << 10;

/// A JSON text that has its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held(Bytes);

impl Held {
    /// The bytes, which keep the place.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// The memory.
#[derive(Clone)]
pub(crate) struct AnswerMemory {
    places: Arc<Semaphore>,
    most: u32,
}

struct Placed {
    json: Box<[u8]>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

/// A place that was waited for before there was a text.
pub(crate) struct Reserved(Option<OwnedSemaphorePermit>);

impl Reserved {
    /// Holds the text, and gives back what it does not need.
    pub(crate) fn hold(self, json: String) -> Held {
        let Some(mut place) = self.0.filter(|_| json.len() > SMALL_BYTES) else {
            return Held(json.into());
        };
        match place.split(json.len().div_ceil(UNIT)) {
            Some(needed) => placed(json, needed),
            None => placed(json, place),
        }
    }
}

/// There is no place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answers that wait to be read have all memory there is for them")]
pub(crate) struct Full;

fn placed(json: String, place: OwnedSemaphorePermit) -> Held {
    Held(Bytes::from_owner(Placed {
        json: json.into_boxed_str().into_boxed_bytes(),
        _place: place,
    }))
}

impl AnswerMemory {
    /// For so many bytes of answers.
    pub(crate) fn of(bytes: usize) -> AnswerMemory {
        let units = bytes / UNIT;
        AnswerMemory {
            places: Arc::new(Semaphore::new(units)),
            most: u32::try_from(units).unwrap_or(u32::MAX),
        }
    }

    /// The units that a text takes; `None` when it needs no place.
    fn units(&self, json: &str) -> Option<u32> {
        let units = u32::try_from(json.len().div_ceil(UNIT)).unwrap_or(u32::MAX);
        // One that is larger than all memory would wait for ever.
        (json.len() > SMALL_BYTES).then_some(units.min(self.most))
    }

    /// Holds a text.
    ///
    /// # Errors
    /// There is no place for it now.
    pub(crate) fn try_hold(&self, json: String) -> Result<Held, Full> {
        let Some(units) = self.units(&json) else {
            return Ok(Held(json.into()));
        };
        let place = self.places.clone().try_acquire_many_owned(units);
        Ok(placed(json, place.map_err(|_| Full)?))
    }

    /// Waits for the place of a text that is about to be made, of at most so many bytes.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Reserved, Full> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let units = units.min(self.most);
        if bytes <= SMALL_BYTES {
            return Ok(Reserved(None));
        }
        // Nobody closes it.
        let place = self.places.clone().acquire_many_owned(units).await;
        Ok(Reserved(Some(place.map_err(|_| Full)?)))
    }

    /// Holds a text, and waits for a place if there is none: for the answer to what was carried out.
    pub(crate) async fn hold(&self, json: String) -> Result<Held, Full> {
        let Some(units) = self.units(&json) else {
            return Ok(Held(json.into()));
        };
        // Nobody closes it.
        let place = self.places.clone().acquire_many_owned(units).await;
        Ok(placed(json, place.map_err(|_| Full)?))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn large() -> String {
        "1".repeat(1 << 20)
    }

    #[test]
    fn answers_have_bounded_bytes_until_they_are_gone() {
        let memory = AnswerMemory::of(4 << 20);
        let mut held: Vec<Bytes> = (0..4)
            .map(|_| memory.try_hold(large()).expect("room").into_bytes())
            .collect();
        assert_eq!(memory.try_hold(large()), Err(Full));
        let small = memory.try_hold("1".repeat(SMALL_BYTES));
        assert!(small.is_ok(), "small answers are not kept waiting");
        // What was cut off for a buffer holds the whole.
        let rest = held.pop().map(|bytes| bytes.slice(7..8));
        assert!(memory.try_hold(large()).is_err());
        drop(rest);
        assert!(memory.try_hold(large()).is_ok());
    }

    #[test]
    fn the_answer_to_a_write_waits_for_its_place() {
        let memory = AnswerMemory::of(1 << 20);
        let first = memory.try_hold(large()).expect("room");
        let mut write = Box::pin(memory.hold(large()));
        assert!((&mut write).now_or_never().is_none());
        drop(first);
        assert!(write.now_or_never().is_some_and(|held| held.is_ok()));
        let reserved = memory.reserve(1 << 20).now_or_never().expect("room");
        assert!(
            memory.try_hold(large()).is_err(),
            "a text is about to be made"
        );
        let held = reserved.expect("room").hold("1".repeat(1 << 19));
        assert!(memory.try_hold(large()).is_err());
        assert!(
            memory.try_hold("1".repeat(1 << 19)).is_ok(),
            "it gives back the rest"
        );
        drop(held);
        let beyond = memory.try_hold("1".repeat(2 << 20));
        assert!(beyond.is_ok(), "it has all memory for itself");
    }
}
