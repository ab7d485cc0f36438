//! A segment of the log: a file of frames that has its whole length before the first of them is written.
//!
//! Its blocks are on disk, full of zeros or of an earlier segment's frames. So a sync of what is written later is one
//! write to the disk: the file system has no new size and no new blocks to note, and the sync waits for no journal, in
//! which it would stand behind what others write to the volume. See `docs/adr/0015-own-log-segments.md`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::frame::{Frame, HEADER, Head, SECTOR};
use crate::storage::faults::{self, Step};
use crate::storage::files::{sync_dir, sync_file};

/// Extension of the files.
const EXTENSION: &str = "segment";
/// Extension of a file that is to become one.
pub const PARTIAL: &str = "partial";

/// Bytes of the first segment. Each is twice as long as the one before, so that a small log takes little room, up to
/// what its volume bears.
const FIRST_BYTES: u64 = if cfg!(test) { 32 << 10 } else { 4 << 20 };
/// Bytes of a segment at most.
const MAX_BYTES: u64 = if cfg!(test) { 128 << 10 } else { 64 << 20 };

/// Bytes that are written, and synced, at once to a new file: the syncs of the log do not wait long behind one.
const FILL_BYTES: usize = 1 << 20;

/// No log has this number: a segment whose log is not known yet.
pub const ANY_LOG: u64 = 0;

/// What the system keeps files in memory in, bytes.
pub const PAGE: usize = 4 << 10;

/// Bytes that are read at once where a frame begins.
const READ_BYTES: usize = 4 << 10;

/// Bytes of the segment of this number, on a volume of this size.
pub fn capacity(number: u64, volume_bytes: u64) -> u64 {
    let doubled = FIRST_BYTES << number.saturating_sub(1).min(16);
    // A system that does not tell says 0.
    let share = match volume_bytes {
        0 => MAX_BYTES,
        bytes => (bytes / 256).clamp(FIRST_BYTES, MAX_BYTES),
    };
    doubled.min(share.next_multiple_of(PAGE as u64))
}

/// The file of the segment of this number.
fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.{EXTENSION}"))
}

/// Numbers of the segments in `dir`, in order.
pub fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let number = stem.and_then(|stem| stem.parse().ok());
        if let Some(number) = number
            && path == path_of(dir, number)
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A segment. Writers and readers may use it at a time.
#[derive(Debug)]
pub struct Segment {
    pub number: u64,
    /// The random number of the log, or [`ANY_LOG`].
    pub log: u64,
    /// Bytes of the file that have their place on disk.
    pub capacity: u64,
    path: PathBuf,
    file: File,
}

impl Segment {
    /// Opens a segment that is there; of which log is left open.
    pub fn open(dir: &Path, number: u64) -> io::Result<Segment> {
        let path = path_of(dir, number);
        let file = File::options().read(true).write(true).open(&path)?;
        Ok(Segment {
            number,
            log: ANY_LOG,
            capacity: file.metadata()?.len(),
            path,
            file,
        })
    }

    /// Makes a segment full of zeros, durably. Tells `progress` how many bytes are filled after each piece, and gives
    /// up with its error.
    pub fn create(
        dir: &Path,
        number: u64,
        log: u64,
        capacity: u64,
        progress: &dyn Fn(u64) -> io::Result<()>,
    ) -> io::Result<Segment> {
        // Whole files alone have the name of a segment.
        let partial = path_of(dir, number).with_extension(PARTIAL);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&partial)?;
        let filled = fill(&file, &partial, capacity, progress);
        if let Err(error) = filled.and_then(|()| sync_file(&file, &partial)) {
            // Others may need the room.
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        let segment = Segment {
            number,
            log,
            capacity,
            path: partial,
            file,
        };
        segment.renamed(dir, number)
    }

    /// Has this segment, which nobody needs any more, be the one of another number, durably.
    pub fn reuse(self, dir: &Path, number: u64) -> io::Result<Segment> {
        self.renamed(dir, number)
    }

    fn renamed(mut self, dir: &Path, number: u64) -> io::Result<Segment> {
        let path = path_of(dir, number);
        fs::rename(&self.path, &path)?;
        sync_dir(dir)?;
        (self.path, self.number) = (path, number);
        Ok(self)
    }

    /// Removes the file. Nobody may need it.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Writes a frame, or several. To write a part of a page that is not in memory, the system would have to read it
    /// first: so the caller adds zeros up to the end of one, which are no frame.
    pub fn write(&self, bytes: &[u8], offset: u32) -> io::Result<()> {
        debug_assert!((offset as usize + bytes.len()).is_multiple_of(PAGE));
        faults::step(Step::LogWriting, &self.path)?;
        self.file.write_all_at(bytes, u64::from(offset))?;
        faults::step(Step::LogWritten, &self.path)
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        faults::step(Step::LogSynced, &self.path)
    }

    /// Makes durable what was found from `from` up to `end`. It is written once more: when an earlier process could not
    /// sync it, the system may have it in memory alone, and take it for written.
    pub fn write_again(&self, from: u64, end: u64) -> io::Result<()> {
        let mut piece = vec![0; FILL_BYTES];
        let mut offset = from;
        while offset < end {
            let wanted = piece.len().min((end - offset) as usize);
            let read = read_up_to(&self.file, &mut piece[..wanted], offset)?;
            if read == 0 {
                break;
            }
            self.file.write_all_at(&piece[..read], offset)?;
            offset += read as u64;
        }
        sync_file(&self.file, &self.path)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a frame was longer than the segment, whose file is longer now, too.
    pub fn was_lengthened(&self) -> bool {
        self.length().is_ok_and(|length| length > self.capacity)
    }

    /// Takes away, durably, what a crash may have left of a first frame. A crash amid the writing of the next one could
    /// leave the parts of both that the former one consists of.
    pub fn clear_first_frame(&self) -> io::Result<()> {
        self.write(&[0; PAGE], 0)?;
        self.sync()
    }

    /// Bytes of the file now.
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The frame at `offset`, when a whole one of this segment and this place is there.
    pub fn frame(&self, offset: u64) -> io::Result<Option<Frame>> {
        let mut buffer = vec![0; READ_BYTES];
        let read = read_up_to(&self.file, &mut buffer, offset)?;
        buffer.truncate(read);
        let Some(head) = buffer.first_chunk::<HEADER>().map(Head::decode) else {
            return Ok(None);
        };
        let wanted = HEADER + head.length;
        let end = offset + wanted as u64;
        if !self.is_at(&head, offset) || end > self.length()? {
            return Ok(None);
        }
        buffer.resize(wanted, 0);
        if read < wanted {
            self.file
                .read_exact_at(&mut buffer[read..], offset + read as u64)?;
        }
        match Frame::check(head, Bytes::from(buffer)) {
            Some(frame) if !frame.head.is_known() => {
                let text = format!("byte {offset}: a frame of a later release");
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            found => Ok(found),
        }
    }

    /// Whether this is the beginning of a frame of this segment at `offset`.
    fn is_at(&self, head: &Head, offset: u64) -> bool {
        let is_ours = self.log == ANY_LOG || head.place.log == self.log;
        is_ours && head.place.segment == self.number && u64::from(head.place.offset) == offset
    }

    /// Where, at `end` or behind it, there is a frame that says that `end` was passed durably: what was there is
    /// damaged then, because a crash takes nothing that was durable.
    pub fn damage(&self, end: u64) -> io::Result<Option<u64>> {
        let mut piece = vec![0; FILL_BYTES];
        let mut offset = end;
        loop {
            let read = read_up_to(&self.file, &mut piece, offset)?;
            if read == 0 {
                return Ok(None);
            }
            for sector in piece[..read].chunks(SECTOR) {
                let says_so =
                    |head: Head| self.is_at(&head, offset) && u64::from(head.place.durable) > end;
                let head = sector.first_chunk().map(Head::decode);
                if head.is_some_and(says_so) && self.frame(offset)?.is_some() {
                    return Ok(Some(offset));
                }
                offset += sector.len() as u64;
            }
        }
    }
}

/// Writes zeros to a new file, `file`, which is at `path`: past the page cache where the file system can, because
/// nobody is going to read them.
fn fill(
    file: &File,
    path: &Path,
    capacity: u64,
    progress: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut options = File::options();
    let mut direct = options
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .ok();
    let zeros = vec![0; FILL_BYTES + PAGE];
    let zeros = &zeros[zeros.as_ptr().align_offset(PAGE)..][..FILL_BYTES];
    let mut filled = 0;
    while filled < capacity {
        let piece = &zeros[..zeros.len().min((capacity - filled) as usize)];
        if let Some(past_cache) = &direct {
            match past_cache.write_all_at(piece, filled) {
                // Some file systems say so late.
                Err(error) if is_refused(&error) => direct = None,
                written => {
                    written?;
                    filled += piece.len() as u64;
                }
            }
        } else {
            file.write_all_at(piece, filled)?;
            file.sync_data()?;
            filled += piece.len() as u64;
        }
        progress(filled)?;
    }
    Ok(())
}

/// Whether a file system refuses to write past the page cache.
fn is_refused(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, Unsupported};
    matches!(error.kind(), InvalidInput | Unsupported)
}

/// Fills `buffer` from `offset` on, as far as the file reaches.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
