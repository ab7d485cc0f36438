//! Writes frames, one behind the other, from segment to segment.
//!
//! Invariant: a segment begins after everything in the one before it is durable, and its first frame is durable before
//! the second one is written. So whatever segment is not the newest with frames is whole, and one without a first frame
//! holds nothing.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::change::{Change, Changes};
use super::frame::{self, HEADER, Place};
use super::index::Index;
use super::segment::{PAGE, Segment};
use super::spare::{PARTS, Spare};

/// Where the log ends.
#[derive(Debug)]
pub struct End {
    pub segment: Arc<Segment>,
    /// Where its second frame begins, or is to.
    pub begin: u32,
    /// Where the next frame begins.
    pub offset: u32,
    /// Checksum of the last frame.
    pub sum: u32,
}

/// The one that writes.
pub struct Writer {
    index: Arc<Mutex<Index>>,
    spare: Spare,
    end: End,
    /// Bytes of the segment that are durable.
    durable: u32,
    /// How many [`PARTS`] of the segment are written.
    parts: u64,
}

impl Writer {
    /// Begins a new log in `dir`, whose random number is `log`.
    pub fn create(
        dir: &Path,
        log: u64,
        volume: u64,
        index: Arc<Mutex<Index>>,
    ) -> io::Result<Writer> {
        let spare = Spare::start(dir, log, volume, 1, None)?;
        let end = begin(&spare, &index, 0)?;
        Ok(Writer::new(index, spare, end))
    }

    /// Goes on where a log ends, all of which is durable. `ready` is the segment behind it, if that is there.
    pub fn open(
        dir: &Path,
        volume: u64,
        index: Arc<Mutex<Index>>,
        end: End,
        ready: Option<Segment>,
    ) -> io::Result<Writer> {
        let (log, next) = (end.segment.log, end.segment.number + 1);
        let spare = Spare::start(dir, log, volume, next, ready)?;
        let mut writer = Writer::new(index, spare, end);
        let number = getrandom::u64().map_err(io::Error::other)?;
        writer.mark(Change::Opened { number })?;
        Ok(writer)
    }

    fn new(index: Arc<Mutex<Index>>, spare: Spare, end: End) -> Writer {
        spare.begun(end.segment.number);
        Writer {
            index,
            spare,
            durable: end.offset,
            end,
            parts: 0,
        }
    }

    /// Adds the frame in `buffer`, to which changes were added, and makes it durable if asked to, with all before it.
    /// Returns by how many bytes the log has grown.
    pub fn write(&mut self, buffer: &mut Vec<u8>, sync: bool) -> io::Result<u64> {
        let mut grown = 0;
        // A frame that is longer than any segment makes the file longer.
        if !self.has_room(buffer) && self.end.offset > self.end.begin {
            self.sync()?;
            grown = u64::from(self.end.offset).max(self.end.segment.capacity)
                - u64::from(self.end.offset);
            self.end = begin(&self.spare, &self.index, self.end.sum)?;
            self.durable = self.end.offset;
            self.spare.begun(self.end.segment.number);
            grown += u64::from(self.end.offset);
            self.release()?;
        }
        let used = buffer.len();
        let (segment, offset) = (Arc::clone(&self.end.segment), self.end.offset);
        let place = Place {
            log: segment.log,
            segment: segment.number,
            offset,
            previous: self.end.sum,
            durable: self.durable,
        };
        self.end.sum = finish(buffer, place)?;
        grown += buffer.len() as u64;
        self.end.offset = offset + buffer.len() as u32;
        // Before it is written: what contradicts itself must not be found by the next start.
        let mut index = self.index.lock();
        for change in Changes::of(&buffer[HEADER..used]) {
            let change = change.map_err(|_| io::ErrorKind::InvalidData)?;
            let applied = index.apply(change, segment.number, offset);
            applied.map_err(io::Error::other)?;
        }
        drop(index);
        fill_page(buffer, offset);
        segment.write(buffer, offset)?;
        if sync {
            self.sync()?;
        }
        self.note_parts();
        Ok(grown)
    }

    /// Makes everything written durable.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.durable < self.end.offset {
            self.end.segment.sync()?;
            self.durable = self.end.offset;
        }
        Ok(())
    }

    /// Gives segments back of which nobody needs anything any more.
    pub fn release(&mut self) -> io::Result<()> {
        let unneeded = self.index.lock().take_unneeded();
        if unneeded.is_empty() {
            return Ok(());
        }
        // What makes them unneeded must not be lost when they are.
        self.sync()?;
        self.spare.give_back(unneeded);
        Ok(())
    }

    /// Makes everything durable, and says so in the log: the next start then knows damage of the last frame.
    pub fn close(&mut self) -> io::Result<()> {
        self.sync()?;
        self.mark(Change::Closed)
    }

    /// Adds a frame that changes nothing, unless it would take the next segment, for which there may be no room.
    fn mark(&mut self, change: Change<'_>) -> io::Result<()> {
        let mut buffer = Vec::new();
        frame::begin(&mut buffer);
        change.encode(&mut buffer);
        if self.has_room(&buffer) {
            self.write(&mut buffer, true)?;
        }
        Ok(())
    }

    fn has_room(&self, buffer: &[u8]) -> bool {
        let length = buffer.len().next_multiple_of(frame::SECTOR) as u64;
        u64::from(self.end.offset) + length <= self.end.segment.capacity
    }

    fn note_parts(&mut self) {
        let parts = u64::from(self.end.offset) * PARTS / self.end.segment.capacity.max(1);
        if parts != self.parts {
            self.parts = parts;
            self.spare.note(parts);
        }
    }
}

/// Writes the first frame of the next segment, durably, behind a frame with the checksum `previous`.
fn begin(spare: &Spare, index: &Mutex<Index>, previous: u32) -> io::Result<End> {
    let segment = Arc::new(spare.take()?);
    let mut buffer = Vec::new();
    frame::begin(&mut buffer);
    let mut index = index.lock();
    index.begin_segment(&mut buffer);
    index.segments.insert(segment.number, Arc::clone(&segment));
    drop(index);
    let place = Place {
        log: segment.log,
        segment: segment.number,
        offset: 0,
        previous,
        durable: 0,
    };
    let sum = finish(&mut buffer, place)?;
    let offset = buffer.len() as u32;
    fill_page(&mut buffer, 0);
    segment.write(&buffer, 0)?;
    segment.sync()?;
    Ok(End {
        segment,
        begin: offset,
        offset,
        sum,
    })
}

fn finish(buffer: &mut Vec<u8>, place: Place) -> io::Result<u32> {
    let sum = frame::finish(buffer, place);
    sum.ok_or_else(|| io::Error::other("a write is longer than a segment may be"))
}

/// Adds zeros up to the end of a page to what is written at `offset`.
fn fill_page(buffer: &mut Vec<u8>, offset: u32) {
    let end = offset as usize + buffer.len();
    let filled = buffer.len() + end.next_multiple_of(PAGE) - end;
    buffer.resize(filled, 0);
}
