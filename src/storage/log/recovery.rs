//! Reads at the start what the segments hold, and finds where the log ends.
//!
//! The first frame of a segment says what is in the one before it, so of all segments but the newest only that is read.
//! The newest is read to its end: to the first place where no frame follows the one before. What a crash left there
//! was not durable, so nobody was told of it, and it is written over. But where a frame further on says that this place
//! was passed durably, a frame is damaged, and the log is refused.
//!
//! A segment without a first frame was made, but not written, or not durably. There may be two, behind all others.
//!
//! Invariant: nothing is removed or written before it is known that the log is taken.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::change::Changes;
use super::frame::Frame;
use super::index::Index;
use super::segment::{self, ANY_LOG, PARTIAL, Segment};
use super::spare::noted_begun;
use super::writer::End;
use crate::storage::open_error::OpenError;

/// What the segments hold.
pub struct Recovered {
    /// The log; none when there is none.
    pub log: Option<(Index, End)>,
    /// The segment behind the end, which has no frame yet.
    pub ready: Option<Segment>,
    /// Files that nobody needs.
    pub leftovers: Vec<PathBuf>,
    /// From here on what the newest segment holds may not be durable.
    doubtful: u64,
}

impl Recovered {
    /// Removes what nobody needs and what does not count, and makes durable what does.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn settle(&mut self) -> io::Result<()> {
        for path in self.leftovers.drain(..) {
            fs::remove_file(path)?;
        }
        if let Some(ready) = &self.ready {
            ready.clear_first_frame()?;
        }
        match &self.log {
            Some((_, end)) => end
                .segment
                .write_again(self.doubtful, u64::from(end.offset)),
            None => Ok(()),
        }
    }
}

/// What the segments in `dir` hold. Nothing is changed.
///
/// # Errors
/// When a segment can't be read, is damaged, or is missing.
pub fn recover(dir: &Path) -> Result<Recovered, OpenError> {
    let failed = |error: io::Error| OpenError::io(dir, error);
    let mut leftovers = partial(dir).map_err(failed)?;
    let mut numbers = segment::list(dir).map_err(failed)?;
    let (mut unused, mut newest) = (Vec::new(), None);
    while let Some(number) = numbers.pop() {
        let found = Segment::open(dir, number).map_err(failed)?;
        match frame_at(&found, 0)? {
            Some(first) => {
                newest = Some((found, first));
                break;
            }
            None => unused.push(found),
        }
    }
    unused.reverse();
    let noted = noted_begun(dir).map_err(failed)?;
    let found = newest.as_ref().map_or(0, |(newest, _)| newest.number);
    if found < noted {
        return Err(missing(dir, found + 1));
    }
    let Some((mut newest, first)) = newest else {
        check_unused(dir, &mut unused, 0, ANY_LOG)?;
        leftovers.extend(unused.into_iter().map(|unused| unused.path().to_owned()));
        return Ok(Recovered {
            log: None,
            ready: None,
            leftovers,
            doubtful: 0,
        });
    };
    newest.log = first.head.place.log;
    check_unused(dir, &mut unused, newest.number, newest.log)?;
    let mut index = Index::default();
    let oldest = oldest_of_run(&numbers, newest.number);
    for number in numbers {
        let mut segment = Segment::open(dir, number).map_err(failed)?;
        if number < oldest {
            // Removed before, but not durably.
            leftovers.push(segment.path().to_owned());
            continue;
        }
        segment.log = newest.log;
        let first = frame_at(&segment, 0)?.ok_or_else(|| damaged(&segment, 0))?;
        replay(&mut index, &segment, &first)?;
        index.segments.insert(number, Arc::new(segment));
    }
    replay(&mut index, &newest, &first)?;
    let newest = Arc::new(newest);
    index.segments.insert(newest.number, Arc::clone(&newest));
    let (end, doubtful) = read_to_end(&mut index, &newest, first)?;
    if let Some((group, start)) = index.missing() {
        let group = group.0;
        let reason = format!("a segment is missing: there is no entry {start} of group {group}");
        return Err(OpenError::damaged(dir, reason));
    }
    let mut unused = unused.into_iter();
    let ready = unused.next();
    leftovers.extend(unused.map(|unused| unused.path().to_owned()));
    Ok(Recovered {
        log: Some((index, end)),
        ready,
        leftovers,
        doubtful,
    })
}

/// Refuses segments without a first frame where there would be some with one: behind the newest of these, or at the
/// beginning of a new log, come one that a crash kept from being begun, and one that was ready.
fn check_unused(
    dir: &Path,
    unused: &mut [Segment],
    newest: u64,
    log: u64,
) -> Result<(), OpenError> {
    let follow = |(at, segment): (usize, &Segment)| segment.number == newest + 1 + at as u64;
    let is_new = newest == 0 && unused.iter().all(|segment| segment.number <= 2);
    let are_next = unused.len() <= 2 && unused.iter().enumerate().all(follow);
    if !is_new && !are_next {
        let reason = format!(
            "segment {} is missing, or its beginning is damaged",
            newest + 1
        );
        return Err(OpenError::damaged(dir, reason));
    }
    for segment in unused {
        segment.log = log;
        check_end(segment, 0)?;
    }
    Ok(())
}

/// The first of the numbers up to `newest` without a gap.
fn oldest_of_run(numbers: &[u64], newest: u64) -> u64 {
    let mut oldest = newest;
    for number in numbers.iter().rev() {
        if *number + 1 != oldest {
            break;
        }
        oldest = *number;
    }
    oldest
}

fn frame_at(segment: &Segment, offset: u64) -> Result<Option<Frame>, OpenError> {
    let frame = segment.frame(offset);
    frame.map_err(|error| OpenError::io(segment.path(), error))
}

/// Follows what the first frame of `segment` says of the one before.
fn replay(index: &mut Index, segment: &Segment, first: &Frame) -> Result<(), OpenError> {
    for change in Changes::of(&first.payload) {
        let change = change.map_err(|_| unknown(segment, 0))?;
        index.replay(change, segment.number.wrapping_sub(1));
    }
    Ok(())
}

/// Follows all frames of the newest segment. Returns where the log ends, and from where on it may not be durable.
fn read_to_end(
    index: &mut Index,
    newest: &Arc<Segment>,
    first: Frame,
) -> Result<(End, u64), OpenError> {
    let begin = first.end();
    let mut frame = first;
    loop {
        let offset = frame.head.place.offset;
        for change in Changes::of(&frame.payload) {
            let change = change.map_err(|_| unknown(newest, u64::from(offset)))?;
            let applied = index.apply(change, newest.number, offset);
            applied.map_err(|hole| OpenError::damaged(newest.path(), hole.to_string()))?;
        }
        let end = frame.end();
        match frame_at(newest, end)? {
            Some(next) if next.head.place.previous == frame.head.sum => frame = next,
            _ => {
                check_end(newest, end)?;
                let doubtful = u64::from(frame.head.place.durable);
                let end = End {
                    segment: Arc::clone(newest),
                    begin: begin as u32,
                    offset: end as u32,
                    sum: frame.head.sum,
                };
                return Ok((end, doubtful));
            }
        }
    }
}

/// Refuses a segment whose frames end at `end` although it was durable beyond that.
fn check_end(segment: &Segment, end: u64) -> Result<(), OpenError> {
    let damage = segment.damage(end);
    match damage.map_err(|error| OpenError::io(segment.path(), error))? {
        Some(_) => Err(damaged(segment, end)),
        None => Ok(()),
    }
}

fn missing(dir: &Path, number: u64) -> OpenError {
    let reason = format!("segment {number} is missing, or its beginning is damaged");
    OpenError::damaged(dir, reason)
}

fn damaged(segment: &Segment, offset: u64) -> OpenError {
    let reason = format!("what was stored at byte {offset} is damaged");
    OpenError::damaged(segment.path(), reason)
}

fn unknown(segment: &Segment, offset: u64) -> OpenError {
    let reason = format!("at byte {offset} is what this release does not know");
    OpenError::damaged(segment.path(), reason)
}

/// Files that were to become segments.
fn partial(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == PARTIAL)
        {
            found.push(path);
        }
    }
    Ok(found)
}
